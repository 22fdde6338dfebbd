// A client of gpkvs that gathers the calls of many callers into messages of one stream. It is one file: copy it.
//
//   const client = new Client('127.0.0.1:7171')
//   await client.set(Buffer.from('answer'), Buffer.from('42'))
//   const value = await client.get(Buffer.from('answer')) // a Buffer, or null
//   await client.close()
import { fileURLToPath } from 'node:url'
import grpc from '@grpc/grpc-js'
import protoLoader from '@grpc/proto-loader'

const GET = 1
const SET = 2
const DELETE = 3
// One byte for each operation of an answer.
const OK = 0
const NOT_FOUND = 1

// With one of these codes in an answer, nothing of its message was executed.
const REFUSED = [
  grpc.status.INVALID_ARGUMENT,
  grpc.status.NOT_FOUND, // there is no such table
  grpc.status.PERMISSION_DENIED,
  grpc.status.RESOURCE_EXHAUSTED,
  grpc.status.ABORTED
]
const FULL_FOR_A_MOMENT = ['', 'queue', 'memory'] // of the server, not of the store

const PAUSE_MS_FIRST = 20
const PAUSE_MS_MAX = 1000

/** A call that was not executed, or a read without an answer; `code` is that of gRPC. */
export class CallError extends Error {
  constructor(message, code) {
    super(message)
    this.name = 'CallError'
    this.code = code
  }
}

/** A write that was sent and whose answer is lost: it may have been executed, or not; `cause` says why. */
export class OutcomeUnknownError extends Error {
  constructor(cause) {
    super(`the write was sent and may have been executed, or not: ${cause.message}`, { cause })
    this.name = 'OutcomeUnknownError'
  }
}

/** One operation that somebody waits for. */
class Call {
  wasSent = false
  isDone = false

  constructor(op, key, value, resolve, reject) {
    Object.assign(this, { op, key, value, resolve, reject })
  }

  end(result) {
    if (this.isDone) return
    this.isDone = true
    clearTimeout(this.timer)
    if (result instanceof Error) this.reject(result)
    else this.resolve(result)
  }

  /** Ends the call without an answer. */
  giveUp(error) {
    this.end(this.wasSent && this.op !== GET ? new OutcomeUnknownError(error) : error)
  }
}

export class Client {
  #options
  #table
  #kv
  #login = new grpc.Metadata()
  #stream = null
  #queue = [] // calls in no message yet
  #parts = [] // messages to send before those: of calls that share a message no more
  #inFlight = [] // messages without an answer, oldest first
  #nextId = 1
  #valueBytes = 0 // of the longest value read lately: so much may a GET bring
  #failures = 0 // one after the other
  #lastError = null
  #pausing = null // a timer
  #isFlushDue = false
  #closing = null // what tells that the client is closed
  #closed = null

  /**
   * @param {string} target HOST:PORT
   * @param {object} options
   *   table: '' is the default one;
   *   credentials: of grpc, where the server has TLS; token: goes along with every stream;
   *   timeoutMs: of a call;
   *   opsMax, bytesMax: operations in a message, and bytes of its keys and values and of the values it brings;
   *   messagesMax: in flight; more of them overlap network and server, fewer make larger messages;
   *   proto: the path of kv.proto
   */
  constructor(target, options = {}) {
    this.#options = { timeoutMs: 30_000, opsMax: 4096, bytesMax: 4 << 20, messagesMax: 2, ...options }
    this.#table = options.table ?? ''
    const proto = options.proto ?? fileURLToPath(new URL('../../proto/v1/kv.proto', import.meta.url))
    const definition = protoLoader.loadSync(proto, { keepCase: true, longs: Number, defaults: true })
    const { KV } = grpc.loadPackageDefinition(definition).gpkvs.v1
    this.#kv = new KV(target, options.credentials ?? grpc.credentials.createInsecure(), {
      'grpc.max_receive_message_length': -1,
      'grpc.max_send_message_length': -1,
      'grpc.keepalive_time_ms': 20_000, // so it notices that the network is gone
      'grpc.keepalive_timeout_ms': 10_000,
      'grpc.initial_reconnect_backoff_ms': PAUSE_MS_FIRST,
      'grpc.max_reconnect_backoff_ms': PAUSE_MS_MAX
    })
    if (options.token) this.#login.set('authorization', `Bearer ${options.token}`)
  }

  /** Returns the value, or null. */
  get(key, timeoutMs) {
    return this.#submit(GET, key, null, timeoutMs)
  }

  /** Stores a value; returns its version when it is durable (0n in a table of the layout u64). */
  set(key, value, timeoutMs) {
    return this.#submit(SET, key, value, timeoutMs)
  }

  /** Returns whether the key was there. */
  delete(key, timeoutMs) {
    return this.#submit(DELETE, key, null, timeoutMs)
  }

  /** Ends the client after the calls that were made: each has its result, or its deadline passes. */
  close() {
    this.#closed ??= new Promise((resolve) => {
      this.#closing = resolve
      this.#flushSoon()
    })
    return this.#closed
  }

  #submit(op, key, value, timeoutMs = this.#options.timeoutMs) {
    return new Promise((resolve, reject) => {
      if (this.#closing) throw new CallError('the client is closed', grpc.status.CANCELLED)
      for (const bytes of op === SET ? [key, value] : [key]) {
        if (!(bytes instanceof Uint8Array)) throw new TypeError(`${typeof bytes} given: keys and values are Buffers`)
      }
      const call = new Call(op, key, value, resolve, reject)
      call.timer = setTimeout(() => this.#late(call), timeoutMs)
      this.#queue.push(call)
      this.#flushSoon()
    })
  }

  #late(call) {
    const tried = this.#lastError ? `; the last attempt: ${this.#lastError.message}` : ''
    call.giveUp(new CallError(`the deadline of the call has passed${tried}`, grpc.status.DEADLINE_EXCEEDED))
    this.#flushSoon() // it may be the last one that `close` waits for
  }

  /** Sends after all that is ready now has run, so that its calls are gathered too. */
  #flushSoon() {
    if (this.#isFlushDue) return
    this.#isFlushDue = true
    setImmediate(() => {
      this.#isFlushDue = false
      if (!this.#pausing) this.#flush()
      if (this.#closing) this.#closeIfDone()
    })
  }

  #flush() {
    while (this.#inFlight.length < this.#options.messagesMax) {
      const calls = this.#take()
      if (!calls.length) return
      this.#stream ??= this.#open()
      for (const call of calls) call.wasSent = true
      const id = this.#nextId++
      this.#inFlight.push({ id, calls })
      this.#stream.write({ id, table: this.#table, ...columns(calls) })
    }
  }

  /** Takes the calls of the next message from the queue, in their order. */
  #take() {
    while (this.#parts.length) {
      const calls = this.#parts.shift().filter((call) => !call.isDone)
      if (calls.length) return calls
    }
    const calls = []
    let bytes = 0
    let taken = 0
    for (const call of this.#queue) {
      if (!call.isDone) {
        bytes += call.key.length + (call.op === GET ? this.#valueBytes : (call.value?.length ?? 0))
        if (calls.length === this.#options.opsMax || (calls.length && bytes > this.#options.bytesMax)) break
        calls.push(call)
      }
      taken++
    }
    this.#queue.splice(0, taken)
    return calls
  }

  #open() {
    const stream = this.#kv.Pipeline(this.#login)
    let status
    stream.on('data', (answer) => this.#answered(stream, answer))
    stream.on('status', (found) => { status = found })
    stream.on('error', () => {}) // the status says it
    stream.on('end', () => this.#ended(stream, status))
    return stream
  }

  #answered(stream, answer) {
    if (stream !== this.#stream) return
    const { id, calls } = this.#inFlight[0] ?? {}
    if (id !== answer.id || !(answer.code || fits(answer, calls))) {
      stream.cancel()
      return this.#lost(new CallError('the server sent an answer that makes no sense', grpc.status.INTERNAL))
    }
    this.#inFlight.shift()
    if (answer.code) this.#refused(calls, answer)
    else this.#handOut(calls, answer)
    this.#flushSoon()
  }

  #handOut(calls, { status, versions, value_lengths: lengths, values }) {
    let gets = 0
    let at = 0
    let longest = 0
    calls.forEach((call, i) => {
      let value = null
      if (call.op === GET) {
        const length = lengths.readUInt32LE(4 * gets++)
        value = values.subarray(at, at += length)
        longest = Math.max(longest, length)
      }
      if (status[i] === OK && call.op === GET) call.end(value)
      else if (status[i] === OK && call.op === SET) call.end(versions.length ? versions.readBigUInt64LE(8 * i) : 0n)
      else if (status[i] === OK) call.end(true)
      else if (status[i] === NOT_FOUND) call.end(call.op === GET ? null : false)
      else call.end(new CallError('the record fails its checksum', grpc.status.DATA_LOSS))
    })
    this.#failures = 0
    this.#lastError = null
    if (gets) this.#valueBytes = Math.max(longest, this.#valueBytes / 2)
  }

  /** Ends the calls of a message that failed, or sends them again, where another message may not fail. */
  #refused(calls, { code, message, full }) {
    const error = new CallError(message, code)
    this.#lastError = error
    const isRefused = REFUSED.includes(code)
    for (const call of calls) call.wasSent &&= !isRefused
    if (code === grpc.status.RESOURCE_EXHAUSTED && FULL_FOR_A_MOMENT.includes(full)) {
      this.#parts.unshift(calls)
      this.#pause()
    } else if (isRefused && code !== grpc.status.NOT_FOUND && calls.length > 1) {
      this.#parts.unshift(...partsOf(calls, error))
    } else {
      for (const call of calls) call.giveUp(error)
    }
  }

  /** Takes the end of a stream by the server or the network. */
  #ended(stream, { code, details, metadata }) {
    if (stream !== this.#stream) return
    const isUnsent = metadata.get('gpkvs-executed')[0] === 'no' || details.startsWith('No connection established')
    const isTransient = [grpc.status.OK, grpc.status.UNAVAILABLE, grpc.status.RESOURCE_EXHAUSTED].includes(code)
    this.#lost(new CallError(details || 'the server ended the stream', code), isUnsent, isTransient)
  }

  /** Gives up a stream: what may be sent again goes to the next one. */
  #lost(error, isUnsent = false, isTransient = false) {
    this.#stream = null
    this.#lastError = error
    const again = []
    for (const { calls } of this.#inFlight.splice(0)) {
      for (const call of calls) {
        call.wasSent &&= !isUnsent
        if (!isTransient || (call.wasSent && call.op !== GET)) call.giveUp(error)
      }
      again.push(calls)
    }
    this.#parts.unshift(...again)
    this.#pause()
  }

  /** Sends nothing for a moment, and longer after each failure that follows another one. */
  #pause() {
    const longest = Math.min(PAUSE_MS_FIRST * 2 ** this.#failures++, PAUSE_MS_MAX)
    clearTimeout(this.#pausing)
    this.#pausing = setTimeout(() => {
      this.#pausing = null
      this.#flushSoon()
    }, longest * (1 - Math.random() / 2))
  }

  #closeIfDone() {
    const inFlight = this.#inFlight.map(({ calls }) => calls)
    if (![this.#queue, ...this.#parts, ...inFlight].flat().every((call) => call.isDone)) return
    clearTimeout(this.#pausing)
    const stream = this.#stream
    this.#stream = null
    if (inFlight.length) stream.cancel()
    else stream?.end()
    this.#kv.close()
    this.#closing()
  }
}

/** Puts calls into the columns of a request. */
function columns(calls) {
  const values = calls.filter((call) => call.op === SET).map((call) => call.value)
  return {
    ops: Buffer.from(calls.map((call) => call.op)),
    keys: Buffer.concat(calls.map((call) => call.key)),
    key_lengths: u32(calls.map((call) => call.key.length)),
    values: Buffer.concat(values),
    value_lengths: u32(values.map((value) => value.length))
  }
}

/** All numbers in columns are little-endian. */
function u32(numbers) {
  const column = Buffer.alloc(4 * numbers.length)
  numbers.forEach((number, i) => column.writeUInt32LE(number, 4 * i))
  return column
}

/** Whether the columns of an answer are as long as its calls need. */
function fits({ status, versions, value_lengths: lengths, values }, calls) {
  let bytes = 0
  for (let at = 0; at + 4 <= lengths.length; at += 4) bytes += lengths.readUInt32LE(at)
  const gets = calls.filter((call) => call.op === GET).length
  const hasVersions = [0, 8 * calls.length].includes(versions.length)
  return status.length === calls.length && hasVersions && lengths.length === 4 * gets && values.length === bytes
}

/** Splits the calls of a message that was refused because of one of them, so that the others get through. */
function partsOf(calls, { code, message }) {
  const named = code === grpc.status.INVALID_ARGUMENT && /^operation (\d+), /.exec(message)
  if (named && Number(named[1]) < calls.length) {
    const index = Number(named[1])
    // The rest goes in halves: as a whole, a message with n bad calls would be sent n times.
    return [calls.slice(0, index), [calls[index]], ...halves(calls.slice(index + 1))]
  }
  const reads = calls.filter((call) => call.op === GET)
  if (code === grpc.status.INVALID_ARGUMENT || !reads.length || reads.length === calls.length) return halves(calls)
  return [reads, calls.filter((call) => call.op !== GET)] // it lacks space, or one of two rights
}

function halves(calls) {
  const middle = calls.length >> 1
  return [calls.slice(0, middle), calls.slice(middle)]
}
