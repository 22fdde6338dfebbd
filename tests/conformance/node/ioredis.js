// What users of ioredis do.
import assert from "node:assert/strict";
import { Redis } from "ioredis";
import { RELEASE, database, eventually, port, restart } from "./site.js";

const redis = new Redis({ port, db: database });
const other = redis.duplicate();

// A cache.
assert.equal(await redis.set("page", "hello", "EX", 100), "OK");
assert(((await redis.ttl("page")) - 99) ** 2 <= 1);
assert.equal(await redis.get("page"), "hello");
assert.equal(await redis.get("no page"), null);
const bytes = Buffer.from(Array.from({ length: 256 }, (_, i) => i));
await redis.set("bytes", bytes);
assert.deepEqual(await redis.getBuffer("bytes"), bytes);
await redis.set("short", "1", "PX", 50);
await eventually(async () => (await redis.exists("short")) === 0);

// Many keys.
await redis.mset(Object.fromEntries(Array.from({ length: 100 }, (_, i) => [`many:${i}`, i])));
assert.deepEqual(await redis.mget("many:7", "none", "many:99"), ["7", null, "99"]);
const found = new Set();
for await (const keys of redis.scanStream({ match: "many:*" })) keys.forEach((key) => found.add(key));
assert.equal(found.size, 100);
assert.equal(await redis.unlink(...found), 100);

// Counters, from two connections at once.
await Promise.all(Array.from({ length: 200 }, (_, i) => (i % 2 ? redis : other).incr("visits")));
assert.equal(await redis.get("visits"), "200");
assert.equal(await redis.incrbyfloat("price", 0.5), "0.5");

// A limit of calls.
const calls = async () => (await redis.multi().incr("calls").expire("calls", 60, "NX").exec()).map(([, reply]) => reply);
assert.deepEqual(await calls(), [1, 1]);
assert.deepEqual(await calls(), [2, 0]);

// A pipeline: one command of it fails.
const pipeline = redis.pipeline();
for (let i = 0; i < 1000; i++) pipeline.set(`p:${i}`, i).get(`p:${i}`);
const replies = await pipeline.incr("page").exec();
assert.deepEqual(replies[1999], [null, "999"]);
assert.match(replies[2000][0].message, /not an integer/);

// A transaction that is watched.
await redis.watch("visits");
await other.incr("visits");
assert.equal(await redis.multi().set("visits", 0).exec(), null);
assert.deepEqual(await redis.multi().set("a", 1).incr("a").get("a").exec(), [[null, "OK"], [null, 2], [null, "2"]]);

// A lock.
redis.defineCommand("release", { numberOfKeys: 1, lua: RELEASE });
assert.equal(await redis.set("lock", "mine", "PX", 10000, "NX"), "OK");
assert.equal(await other.set("lock", "theirs", "PX", 10000, "NX"), null);
assert.equal(await redis.release("lock", "theirs"), 0);
assert.equal(await redis.release("lock", "mine"), 1);
assert.equal(await other.set("lock", "theirs", "PX", 10000, "NX"), "OK");

await assert.rejects(redis.lpush("list", "1"), /unknown command 'lpush'/);

// All of it is there when the server was killed; the clients come back by themselves.
for (const client of [redis, other]) client.on("error", () => {});
await restart();
assert.equal(await redis.get("visits"), "201");
assert.equal(await other.incr("visits"), 202);
await Promise.all([redis.quit(), other.quit()]);
