// A gRPC server on gRPC's C++ library that answers every call with the same message and does nothing else. It prints its
// port and the library's version.
//
//   empty_grpcpp MESSAGE    the answer's message, hexadecimal

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>

#include <cstdio>
#include <string>

namespace {

grpc::Slice answer;

class Call : public grpc::ServerGenericBidiReactor {
public:
    Call() { StartRead(&request_); }

private:
    void OnReadDone(bool) override {
        response_ = grpc::ByteBuffer(&answer, 1);
        StartWriteAndFinish(&response_, grpc::WriteOptions(), grpc::Status::OK);
    }
    void OnDone() override { delete this; }

    grpc::ByteBuffer request_, response_;
};

class Service : public grpc::CallbackGenericService {
    grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext*) override { return new Call; }
};

}  // namespace

int main(int, char** arguments) {
    std::string message;
    for (const char* digits = arguments[1]; *digits; digits += 2) {
        message += static_cast<char>(std::stoi(std::string(digits, 2), nullptr, 16));
    }
    answer = grpc::Slice(message);
    Service service;
    int port = 0;
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterCallbackGenericService(&service);
    auto server = builder.BuildAndStart();
    printf("%d %s\n", port, grpc::Version().c_str());
    fflush(stdout);
    server->Wait();
}
