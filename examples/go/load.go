// Calls a second of many callers, one call of each at a time: plain calls, and calls that gather.go gathers.
// Usage: [GPKVS_CLIENT_TLS_CA=ca.pem] [GPKVS_TOKEN=...] go run . [HOST:PORT] [CALLERS] [SECONDS]
package main

import (
	"context"
	"crypto/x509"
	"fmt"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
)

func main() {
	target := argument(1, "127.0.0.1:7171")
	callers, err := strconv.Atoi(argument(2, "64"))
	check(err)
	seconds, err := strconv.ParseFloat(argument(3, "3"), 64)
	check(err)

	options := Options{Token: os.Getenv("GPKVS_TOKEN")}
	security := grpc.WithInsecure()
	if file := os.Getenv("GPKVS_CLIENT_TLS_CA"); file != "" {
		pem, err := os.ReadFile(file)
		check(err)
		options.CA = x509.NewCertPool()
		options.CA.AppendCertsFromPEM(pem)
		security = grpc.WithTransportCredentials(credentials.NewClientTLSFromCert(options.CA, ""))
	}
	client, err := NewClient(target, options)
	check(err)
	conn, err := grpc.Dial(target, security)
	check(err)
	ctx := context.Background()
	login := ctx
	if options.Token != "" {
		login = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+options.Token)
	}
	value := make([]byte, 100)

	measure := func(name string, call func(key []byte) error) {
		var wait sync.WaitGroup
		var calls int64
		begin := time.Now()
		end := begin.Add(time.Duration(seconds * float64(time.Second)))
		for caller := 0; caller < callers; caller++ {
			wait.Add(1)
			go func() {
				defer wait.Done()
				for time.Now().Before(end) {
					number := atomic.AddInt64(&calls, 1)
					check(call([]byte(fmt.Sprintf("key-%012d", number%100_000))))
				}
			}()
		}
		wait.Wait()
		fmt.Printf("%s %9.0f calls a second\n", name, float64(calls)/time.Since(begin).Seconds())
	}
	measure("plain SET   ", func(key []byte) error {
		return conn.Invoke(login, "/gpkvs.v1.KV/Set", &SetRequest{Key: key, Value: value}, new(SetResponse))
	})
	measure("gathered SET", func(key []byte) error {
		_, err := client.Set(ctx, key, value)
		return err
	})
	measure("plain GET   ", func(key []byte) error {
		return conn.Invoke(login, "/gpkvs.v1.KV/Get", &GetRequest{Key: key}, new(GetResponse))
	})
	measure("gathered GET", func(key []byte) error {
		_, _, err := client.Get(ctx, key)
		return err
	})
	check(conn.Close())
	check(client.Close())
}

func argument(number int, usual string) string {
	if number < len(os.Args) {
		return os.Args[number]
	}
	return usual
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// SetRequest and the others have those fields of the messages in kv.proto that plain calls need.
type SetRequest struct {
	Key   []byte `protobuf:"bytes,2,opt,name=key,proto3"`
	Value []byte `protobuf:"bytes,3,opt,name=value,proto3"`
}

type SetResponse struct {
	Version uint64 `protobuf:"varint,1,opt,name=version,proto3"`
}

type GetRequest struct {
	Key []byte `protobuf:"bytes,2,opt,name=key,proto3"`
}

type GetResponse struct {
	Found bool   `protobuf:"varint,1,opt,name=found,proto3"`
	Value []byte `protobuf:"bytes,2,opt,name=value,proto3"`
}

func (m *SetRequest) Reset()         { *m = SetRequest{} }
func (m *SetRequest) String() string { return "SetRequest" }
func (*SetRequest) ProtoMessage()    {}

func (m *SetResponse) Reset()         { *m = SetResponse{} }
func (m *SetResponse) String() string { return "SetResponse" }
func (*SetResponse) ProtoMessage()    {}

func (m *GetRequest) Reset()         { *m = GetRequest{} }
func (m *GetRequest) String() string { return "GetRequest" }
func (*GetRequest) ProtoMessage()    {}

func (m *GetResponse) Reset()         { *m = GetResponse{} }
func (m *GetResponse) String() string { return "GetResponse" }
func (*GetResponse) ProtoMessage()    {}
