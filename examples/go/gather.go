// A client of gpkvs that gathers the calls of many goroutines into messages of one stream. It is one file: copy it, and
// give it your package's name.
//
//	client, err := NewClient("127.0.0.1:7171", Options{})
//	version, err := client.Set(ctx, []byte("answer"), []byte("42"))
//	value, found, err := client.Get(ctx, []byte("answer"))
//	client.Close()
package main

import (
	"context"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand"
	"regexp"
	"runtime"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

const (
	pauseFirst = 20 * time.Millisecond
	pauseMax   = time.Second
)

// ErrClosed is the error of calls that are made after Close.
var ErrClosed = errors.New("the client is closed")

// OutcomeUnknownError is the error of a write that was sent and has no answer: it may have been executed, or not.
type OutcomeUnknownError struct{ Cause error }

func (e *OutcomeUnknownError) Error() string {
	return "the write was sent and may have been executed, or not: " + e.Cause.Error()
}

func (e *OutcomeUnknownError) Unwrap() error { return e.Cause }

// Options of a client; the zero value is good.
type Options struct {
	Table       string         // "" is the default one
	CA          *x509.CertPool // where the server has TLS: what it must be signed by
	Token       string         // goes along with the stream
	OpsMax      int            // operations in a message
	BytesMax    int            // bytes of its keys and values, and of the values it brings; one larger call goes alone
	MessagesMax int            // in flight: more of them overlap network and server, fewer make larger messages
}

type op byte

const (
	opGet    op = 1
	opSet    op = 2
	opDelete op = 3
)

// One byte for each operation of an answer.
const (
	statusOK       = 0
	statusNotFound = 1
)

// call is one operation that somebody waits for.
type call struct {
	op         op
	key, value []byte
	done       chan struct{}
	// The rest is guarded by the client's mutex, until done is closed.
	wasSent bool
	isDone  bool
	found   bool
	version uint64
	err     error
}

func (c *call) end(err error) {
	if !c.isDone {
		c.isDone, c.err = true, err
		close(c.done)
	}
}

// giveUp ends the call without an answer.
func (c *call) giveUp(err error) {
	if c.wasSent && c.op != opGet {
		err = &OutcomeUnknownError{err}
	}
	c.end(err)
}

type message struct {
	id    uint64
	calls []*call
}

// Client gathers the calls of all goroutines that use it.
type Client struct {
	conn    *grpc.ClientConn
	options Options

	mutex      sync.Mutex
	changed    *sync.Cond // there is something to send, or room to send it, or the end
	queue      []*call    // calls in no message yet
	parts      [][]*call  // messages to send before those: of calls that share a message no more
	inFlight   []message  // messages without an answer, oldest first
	stream     *stream
	nextID     uint64
	valueBytes int // of the longest value read lately: so much may a Get bring
	failures   int // one after the other
	lastErr    error
	pauseUntil time.Time
	isClosed   bool
	ended      chan struct{}
}

type stream struct {
	grpc.ClientStream
	cancel context.CancelFunc
}

// NewClient makes a client of the server at target, HOST:PORT. It connects when there is something to send.
func NewClient(target string, options Options) (*Client, error) {
	if options.OpsMax == 0 {
		options.OpsMax = 4096
	}
	if options.BytesMax == 0 {
		options.BytesMax = 4 << 20
	}
	if options.MessagesMax == 0 {
		options.MessagesMax = 2
	}
	security := grpc.WithInsecure()
	if options.CA != nil {
		security = grpc.WithTransportCredentials(credentials.NewClientTLSFromCert(options.CA, ""))
	}
	conn, err := grpc.Dial(target, security,
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(math.MaxInt32), grpc.MaxCallSendMsgSize(math.MaxInt32)),
		// So it notices that the network is gone.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 20 * time.Second, Timeout: 10 * time.Second}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: pauseFirst, Multiplier: 2, Jitter: 0.5, MaxDelay: pauseMax},
			MinConnectTimeout: 5 * time.Second,
		}))
	if err != nil {
		return nil, err
	}
	c := &Client{conn: conn, options: options, nextID: 1, ended: make(chan struct{})}
	c.changed = sync.NewCond(&c.mutex)
	go c.run()
	return c, nil
}

// Get returns the value of a key, and whether the key is there.
func (c *Client) Get(ctx context.Context, key []byte) (value []byte, found bool, err error) {
	get := &call{op: opGet, key: key}
	err = c.do(ctx, get)
	return get.value, get.found, err
}

// Set stores a value; it returns the version when the value is durable (0 in a table of the layout u64).
func (c *Client) Set(ctx context.Context, key, value []byte) (version uint64, err error) {
	set := &call{op: opSet, key: key, value: value}
	err = c.do(ctx, set)
	return set.version, err
}

// Delete removes a key; it returns whether the key was there.
func (c *Client) Delete(ctx context.Context, key []byte) (found bool, err error) {
	del := &call{op: opDelete, key: key}
	err = c.do(ctx, del)
	return del.found, err
}

// Close ends the client after the calls that were made: each has its result, or its context ends.
func (c *Client) Close() error {
	c.mutex.Lock()
	c.isClosed = true
	c.mutex.Unlock()
	c.changed.Broadcast()
	<-c.ended
	return c.conn.Close()
}

// do queues a call and waits until it has a result or its context ends.
func (c *Client) do(ctx context.Context, one *call) error {
	one.done = make(chan struct{})
	c.mutex.Lock()
	if c.isClosed {
		c.mutex.Unlock()
		return ErrClosed
	}
	c.queue = append(c.queue, one)
	c.mutex.Unlock()
	c.changed.Broadcast()
	select {
	case <-one.done:
	case <-ctx.Done():
		c.mutex.Lock()
		err := ctx.Err()
		if c.lastErr != nil && !one.isDone {
			err = fmt.Errorf("%w; the last attempt: %v", err, c.lastErr)
		}
		one.giveUp(err)
		c.mutex.Unlock()
		c.changed.Broadcast() // it may be the last one that Close waits for
	}
	return one.err
}

// run sends messages until the client is closed and all calls have ended.
func (c *Client) run() {
	defer close(c.ended)
	c.mutex.Lock()
	defer c.mutex.Unlock()
	for !c.isOver() {
		if len(c.inFlight) == c.options.MessagesMax || len(c.queue)+len(c.parts) == 0 {
			c.changed.Wait()
		} else if pause := time.Until(c.pauseUntil); pause > 0 {
			c.sleep(pause)
		} else if c.stream == nil {
			c.open()
		} else {
			c.letOthersCall()
			if c.stream == nil { // it has ended meanwhile
				continue
			}
			if calls := c.take(); len(calls) > 0 {
				c.send(calls)
			}
		}
	}
	if c.stream != nil {
		c.stream.cancel()
	}
}

func (c *Client) isOver() bool {
	if !c.isClosed {
		return false
	}
	lists := append([][]*call{c.queue}, c.parts...)
	for _, sent := range c.inFlight {
		lists = append(lists, sent.calls)
	}
	for _, calls := range lists {
		if len(live(calls)) > 0 {
			return false
		}
	}
	return true
}

func (c *Client) sleep(pause time.Duration) {
	c.mutex.Unlock()
	time.Sleep(pause)
	c.mutex.Lock()
}

// letOthersCall lets all goroutines run that are ready now, so that their calls are gathered too.
func (c *Client) letOthersCall() {
	c.mutex.Unlock()
	runtime.Gosched()
	c.mutex.Lock()
}

// take takes the calls of the next message from the queue, in their order.
func (c *Client) take() []*call {
	for len(c.parts) > 0 {
		calls := live(c.parts[0])
		c.parts = c.parts[1:]
		if len(calls) > 0 {
			return calls
		}
	}
	var calls []*call
	bytes, taken := 0, 0
	for _, one := range c.queue {
		if !one.isDone {
			bytes += len(one.key) + len(one.value)
			if one.op == opGet {
				bytes += c.valueBytes
			}
			if len(calls) == c.options.OpsMax || len(calls) > 0 && bytes > c.options.BytesMax {
				break
			}
			calls = append(calls, one)
		}
		taken++
	}
	c.queue = append([]*call(nil), c.queue[taken:]...)
	return calls
}

// send sends calls as one message.
func (c *Client) send(calls []*call) {
	request := columns(calls)
	request.Table, request.Id = c.options.Table, c.nextID
	c.inFlight = append(c.inFlight, message{c.nextID, calls})
	c.nextID++
	for _, one := range calls {
		one.wasSent = true
	}
	current := c.stream
	c.mutex.Unlock()
	current.SendMsg(request) // an error of it ends the stream, and receive learns why
	c.mutex.Lock()
}

// open opens a stream, and the mutex is free meanwhile: calls may be made, and end.
func (c *Client) open() {
	c.mutex.Unlock()
	ctx, cancel := context.WithCancel(context.Background())
	if c.options.Token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+c.options.Token)
	}
	description := &grpc.StreamDesc{StreamName: "Pipeline", ServerStreams: true, ClientStreams: true}
	opened, err := c.conn.NewStream(ctx, description, "/gpkvs.v1.KV/Pipeline")
	c.mutex.Lock()
	if err != nil {
		cancel()
		c.lastErr = err
		c.pause()
		return
	}
	c.stream = &stream{opened, cancel}
	go c.receive(c.stream)
}

// receive takes the answers of one stream until it ends.
func (c *Client) receive(from *stream) {
	for {
		answer := new(BatchResponse)
		err := from.RecvMsg(answer)
		c.mutex.Lock()
		if err == nil {
			err = c.answered(answer)
		}
		if err != nil {
			c.lost(err, from.Trailer())
			c.mutex.Unlock()
			from.cancel()
			c.changed.Broadcast()
			return
		}
		c.mutex.Unlock()
		c.changed.Broadcast()
	}
}

func (c *Client) answered(answer *BatchResponse) error {
	if len(c.inFlight) == 0 || c.inFlight[0].id != answer.Id || answer.Code == 0 && !answer.fits(c.inFlight[0].calls) {
		return status.Error(codes.Internal, "the server sent an answer that makes no sense")
	}
	calls := c.inFlight[0].calls
	c.inFlight = c.inFlight[1:]
	if answer.Code != 0 {
		c.refused(calls, answer)
	} else {
		c.handOut(calls, answer)
	}
	return nil
}

func (c *Client) handOut(calls []*call, answer *BatchResponse) {
	values, lengths, longest := answer.Values, answer.ValueLengths, -1
	for i, one := range calls {
		var value []byte
		if one.op == opGet {
			length := int(binary.LittleEndian.Uint32(lengths))
			value, values, lengths = values[:length:length], values[length:], lengths[4:]
			if length > longest {
				longest = length
			}
		}
		if one.isDone { // its caller has gone, and may be reading the call
			continue
		}
		switch answer.Status[i] {
		case statusOK:
			one.found = true
			if one.op == opGet {
				one.value = value
			}
			if len(answer.Versions) > 0 {
				one.version = binary.LittleEndian.Uint64(answer.Versions[8*i:])
			}
			one.end(nil)
		case statusNotFound:
			one.end(nil)
		default:
			one.end(status.Error(codes.DataLoss, "the record fails its checksum"))
		}
	}
	c.failures, c.lastErr = 0, nil
	if longest >= 0 {
		c.valueBytes /= 2
		if longest > c.valueBytes {
			c.valueBytes = longest
		}
	}
}

// refused ends the calls of a message that failed, or sends them again where another message may not fail.
func (c *Client) refused(calls []*call, answer *BatchResponse) {
	code := codes.Code(answer.Code)
	err := status.Error(code, answer.Message)
	c.lastErr = err
	isRefused := false // nothing of the message was executed
	switch code {
	case codes.InvalidArgument, codes.NotFound, codes.PermissionDenied, codes.ResourceExhausted, codes.Aborted:
		isRefused = true
	}
	isFullForAMoment := answer.Full == "" || answer.Full == "queue" || answer.Full == "memory" // the server, not the store
	if isRefused {
		unsent(calls)
	}
	switch {
	case code == codes.ResourceExhausted && isFullForAMoment:
		c.parts = append([][]*call{calls}, c.parts...)
		c.pause()
	case isRefused && code != codes.NotFound && len(calls) > 1:
		c.parts = append(partsOf(calls, code, answer.Message), c.parts...)
	default:
		for _, one := range calls {
			one.giveUp(err)
		}
	}
}

// lost takes the end of a stream; what may be sent again goes to the next one.
func (c *Client) lost(err error, trailer metadata.MD) {
	code := status.Code(err)
	said := trailer.Get("gpkvs-executed")
	isUnsent := len(said) > 0 && said[0] == "no"
	// The stream has ended with OK where RecvMsg returns io.EOF; its code is Unknown.
	isTransient := code == codes.Unavailable || code == codes.ResourceExhausted || !isStatus(err)
	c.stream = nil
	c.lastErr = err
	var again [][]*call
	for _, sent := range c.inFlight {
		if isUnsent {
			unsent(sent.calls)
		}
		for _, one := range sent.calls {
			if !isTransient || one.wasSent && one.op != opGet {
				one.giveUp(err)
			}
		}
		again = append(again, sent.calls)
	}
	c.inFlight = nil
	c.parts = append(again, c.parts...)
	c.pause()
}

func isStatus(err error) bool {
	_, is := status.FromError(err)
	return is
}

// pause lets nothing be sent for a moment, and longer after each failure that follows another one.
func (c *Client) pause() {
	longest := pauseMax
	if c.failures < 6 {
		longest = pauseFirst << c.failures
	}
	c.failures++
	c.pauseUntil = time.Now().Add(longest/2 + time.Duration(rand.Int63n(int64(longest/2))))
}

func live(calls []*call) []*call {
	var found []*call
	for _, one := range calls {
		if !one.isDone {
			found = append(found, one)
		}
	}
	return found
}

func unsent(calls []*call) {
	for _, one := range calls {
		one.wasSent = false
	}
}

// columns puts calls into the columns of a request. All numbers in columns are little-endian.
func columns(calls []*call) *BatchRequest {
	request := &BatchRequest{Ops: make([]byte, len(calls)), KeyLengths: make([]byte, 4*len(calls))}
	for i, one := range calls {
		request.Ops[i] = byte(one.op)
		request.Keys = append(request.Keys, one.key...)
		binary.LittleEndian.PutUint32(request.KeyLengths[4*i:], uint32(len(one.key)))
		if one.op == opSet {
			var length [4]byte
			binary.LittleEndian.PutUint32(length[:], uint32(len(one.value)))
			request.Values = append(request.Values, one.value...)
			request.ValueLengths = append(request.ValueLengths, length[:]...)
		}
	}
	return request
}

// fits says whether the columns of an answer are as long as its calls need.
func (m *BatchResponse) fits(calls []*call) bool {
	gets, bytes := 0, 0
	for _, one := range calls {
		if one.op == opGet {
			gets++
		}
	}
	if len(m.ValueLengths) != 4*gets {
		return false
	}
	for at := 0; at < len(m.ValueLengths); at += 4 {
		bytes += int(binary.LittleEndian.Uint32(m.ValueLengths[at:]))
	}
	hasVersions := len(m.Versions) == 8*len(calls)
	return len(m.Status) == len(calls) && len(m.Values) == bytes && (hasVersions || len(m.Versions) == 0)
}

var namesOperation = regexp.MustCompile(`^operation (\d+), `)

// partsOf splits the calls of a message that was refused because of one of them, so that the others get through.
func partsOf(calls []*call, code codes.Code, text string) [][]*call {
	if found := namesOperation.FindStringSubmatch(text); code == codes.InvalidArgument && found != nil {
		if index, err := strconv.Atoi(found[1]); err == nil && index < len(calls) {
			// The rest goes in halves: as a whole, a message with n bad calls would be sent n times.
			return append([][]*call{calls[:index], calls[index : index+1]}, halves(calls[index+1:])...)
		}
	}
	var reads, writes []*call
	for _, one := range calls {
		if one.op == opGet {
			reads = append(reads, one)
		} else {
			writes = append(writes, one)
		}
	}
	if code == codes.InvalidArgument || len(reads) == 0 || len(writes) == 0 {
		return halves(calls)
	}
	return [][]*call{reads, writes} // it lacks space, or one of two rights
}

func halves(calls []*call) [][]*call {
	middle := len(calls) / 2
	return [][]*call{calls[:middle], calls[middle:]}
}

// BatchRequest has those fields of the message in kv.proto that the client uses; so it needs no generated code.
type BatchRequest struct {
	Table        string `protobuf:"bytes,1,opt,name=table,proto3"`
	Ops          []byte `protobuf:"bytes,2,opt,name=ops,proto3"`
	Keys         []byte `protobuf:"bytes,3,opt,name=keys,proto3"`
	KeyLengths   []byte `protobuf:"bytes,4,opt,name=key_lengths,proto3"`
	Values       []byte `protobuf:"bytes,6,opt,name=values,proto3"`
	ValueLengths []byte `protobuf:"bytes,7,opt,name=value_lengths,proto3"`
	Id           uint64 `protobuf:"varint,9,opt,name=id,proto3"`
}

// BatchResponse has those fields of the message in kv.proto that the client uses.
type BatchResponse struct {
	Id           uint64 `protobuf:"varint,1,opt,name=id,proto3"`
	Status       []byte `protobuf:"bytes,2,opt,name=status,proto3"`
	Values       []byte `protobuf:"bytes,3,opt,name=values,proto3"`
	ValueLengths []byte `protobuf:"bytes,4,opt,name=value_lengths,proto3"`
	Versions     []byte `protobuf:"bytes,5,opt,name=versions,proto3"`
	Code         uint32 `protobuf:"varint,6,opt,name=code,proto3"`
	Message      string `protobuf:"bytes,7,opt,name=message,proto3"`
	Full         string `protobuf:"bytes,8,opt,name=full,proto3"`
}

func (m *BatchRequest) Reset()         { *m = BatchRequest{} }
func (m *BatchRequest) String() string { return "BatchRequest " + strconv.FormatUint(m.Id, 10) }
func (*BatchRequest) ProtoMessage()    {}

func (m *BatchResponse) Reset()         { *m = BatchResponse{} }
func (m *BatchResponse) String() string { return "BatchResponse " + strconv.FormatUint(m.Id, 10) }
func (*BatchResponse) ProtoMessage()    {}
