# The calls of a foreign client by gRPC for Ruby. The folder of the generated messages comes second.
require "grpc"
require "json"
$LOAD_PATH.unshift(ARGV[1])
require "v1/kv_services_pb"

GET = 1
SET = 2
MESSAGES = 100
Kv = Gpkvs::V1

def sets(number)
  value = [number].pack("Q<")
  Kv::BatchRequest.new(id: number, ops: [SET, GET].pack("CC"), keys: value * 2, key_size: 8, values: value, value_size: 8)
end

# One message, and then none for a long time.
def one_message
  Enumerator.new do |requests|
    requests << sets(1)
    sleep 20
  end
end

def code_of
  yield.each {}
rescue GRPC::BadStatus => error
  error.code
end

ca, token = ENV.values_at("GPKVS_CLIENT_TLS_CA", "GPKVS_TOKEN")
credentials = ca ? GRPC::Core::ChannelCredentials.new(File.read(ca)) : :this_channel_is_insecure
client = Kv::KV::Stub.new(ARGV[0], credentials)
metadata = token ? { "authorization" => "Bearer #{token}" } : {}
found = {}
client.set(Kv::SetRequest.new(key: "k", value: "value"), metadata: metadata)
found[:get] = client.get(Kv::GetRequest.new(key: "k"), metadata: metadata).value
answer = client.batch(sets(7), metadata: metadata)
found[:batch] = [answer.id, answer.values.unpack1("Q<")]
begin
  client.get(Kv::GetRequest.new(key: ""), metadata: metadata)
rescue GRPC::BadStatus => error
  found[:refused] = [error.code, error.details]
end
answers = client.pipeline((0...MESSAGES).lazy.map { |number| sets(number) }.each_entry, metadata: metadata)
found[:pipeline] = answers.each_with_index.count { |one, number| one.id == number }
found[:deadline] = code_of { client.pipeline(one_message, metadata: metadata, deadline: Time.now + 0.3) }
operation = client.pipeline(one_message, metadata: metadata, return_op: true)
found[:cancel] = code_of do
  answers = operation.execute
  Thread.new { sleep 0.3; operation.cancel }
  answers
end
found[:after] = client.get(Kv::GetRequest.new(key: "k"), metadata: metadata).value
puts JSON.generate(found)
$stdout.flush
exit! # threads that would send more are asleep
