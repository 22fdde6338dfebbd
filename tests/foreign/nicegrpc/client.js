// The calls of a foreign client by nice-grpc: promises and async iterators over gRPC for Node.js.
"use strict";
const fs = require("fs");
const { ChannelCredentials, credentials, loadPackageDefinition } = require("@grpc/grpc-js");
const { loadSync } = require("@grpc/proto-loader");
const { createChannel, createClientFactory, Metadata } = require("nice-grpc");
const { deadlineMiddleware } = require("nice-grpc-client-middleware-deadline");

const GET = 1, SET = 2;
const MESSAGES = 100;

function sets(number) {
  const value = Buffer.alloc(8);
  value.writeUInt32LE(number);
  return { id: number, ops: Buffer.from([SET, GET]), keys: Buffer.concat([value, value]), keySize: 8, values: value, valueSize: 8 };
}

async function* messages() {
  for (let number = 0; number < MESSAGES; number++) yield sets(number);
}

// One message, and then none for a long time.
async function* oneMessage(signal) {
  yield sets(1);
  await new Promise((resolve) => {
    const timer = setTimeout(resolve, 20000);
    signal.addEventListener("abort", () => { clearTimeout(timer); resolve(); });
  });
}

async function codeOf(call) {
  try {
    for await (const _ of call());
  } catch (error) {
    return error.name === "AbortError" ? 1 : error.code;
  }
}

async function main(target, proto) {
  const { GPKVS_CLIENT_TLS_CA: ca, GPKVS_TOKEN: token } = process.env;
  const definition = loadPackageDefinition(loadSync(proto, { defaults: true, longs: Number })).gpkvs.v1.KV.service;
  const channel = createChannel(target, ca ? credentials.createSsl(fs.readFileSync(ca)) : credentials.createInsecure());
  const client = createClientFactory().use(deadlineMiddleware).create(definition, channel);
  const metadata = Metadata(token ? { authorization: `Bearer ${token}` } : {});
  const found = {};
  const key = Buffer.from("k");
  await client.Set({ key, value: Buffer.from("value") }, { metadata });
  found.get = (await client.Get({ key }, { metadata })).value.toString();
  const answer = await client.Batch(sets(7), { metadata });
  found.batch = [answer.id, answer.values.readUInt32LE()];
  try {
    await client.Get({ key: Buffer.alloc(0) }, { metadata });
  } catch (error) {
    found.refused = [error.code, error.details];
  }
  let number = 0;
  found.pipeline = 0;
  for await (const one of client.Pipeline(messages(), { metadata })) found.pipeline += one.id === number++;
  const late = new AbortController();
  found.deadline = await codeOf(() => client.Pipeline(oneMessage(late.signal), { metadata, deadline: new Date(Date.now() + 300) }));
  late.abort();
  const given = new AbortController();
  setTimeout(() => given.abort(), 300);
  found.cancel = await codeOf(() => client.Pipeline(oneMessage(given.signal), { metadata, signal: given.signal }));
  found.after = (await client.Get({ key }, { metadata })).value.toString();
  channel.close();
  console.log(JSON.stringify(found));
}

main(process.argv[2], process.argv[3]);
