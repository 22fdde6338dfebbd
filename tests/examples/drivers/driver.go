// Makes the calls that its standard input asks for, a line of JSON each, all at the same time.
// Usage: driver '{"target": ..., and options of the client}'
package main

import (
	"bufio"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"os"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

type ask struct {
	ID        int     `json:"id"`
	Op        string  `json:"op"`
	Key       []byte  `json:"key"`
	Value     []byte  `json:"value"`
	TimeoutMs float64 `json:"timeout_ms"`
}

func main() {
	var given struct{ Target, CA, Table, Token string }
	must(json.Unmarshal([]byte(os.Args[1]), &given))
	options := Options{Table: given.Table, Token: given.Token}
	if given.CA != "" {
		pem, err := os.ReadFile(given.CA)
		must(err)
		options.CA = x509.NewCertPool()
		options.CA.AppendCertsFromPEM(pem)
	}
	client, err := NewClient(given.Target, options)
	must(err)
	var output sync.Mutex
	var running sync.WaitGroup
	for lines := json.NewDecoder(bufio.NewReader(os.Stdin)); lines.More(); {
		one := ask{TimeoutMs: 30_000}
		must(lines.Decode(&one))
		running.Add(1)
		go func() {
			defer running.Done()
			found := do(client, one)
			found["id"] = one.ID
			output.Lock()
			defer output.Unlock()
			must(json.NewEncoder(os.Stdout).Encode(found))
		}()
	}
	must(client.Close())
	running.Wait()
}

func do(client *Client, one ask) map[string]any {
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(one.TimeoutMs*1e6))
	defer cancel()
	outcome := map[string]any{}
	var err error
	switch one.Op {
	case "get":
		var value []byte
		if value, outcome["found"], err = client.Get(ctx, one.Key); outcome["found"] == true {
			outcome["value"] = append([]byte{}, value...) // JSON has null for a nil one
		}
	case "set":
		outcome["version"], err = client.Set(ctx, one.Key, one.Value)
	case "delete":
		outcome["found"], err = client.Delete(ctx, one.Key)
	}
	var unknown *OutcomeUnknownError
	switch {
	case err == nil:
		return outcome
	case errors.As(err, &unknown):
		return map[string]any{"unknown": true, "text": err.Error()}
	case errors.Is(err, context.DeadlineExceeded):
		return map[string]any{"code": codes.DeadlineExceeded, "text": err.Error()}
	}
	return map[string]any{"code": status.Code(err), "text": err.Error()}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
