// What users of node-redis do, in both protocols.
import assert from "node:assert/strict";
import { WatchError, createClient } from "redis";
import { RELEASE, eventually, restart, url } from "./site.js";

const lost = [];
const connect = (RESP) => createClient({ url, RESP }).on("error", (error) => lost.push(error)).connect();
const [two, three] = [await connect(2), await connect(3)];

for (const redis of [two, three]) {
  // A cache.
  assert.equal(await redis.set("page", "hello", { expiration: { type: "EX", value: 100 } }), "OK");
  assert(((await redis.ttl("page")) - 99) ** 2 <= 1);
  assert.equal(await redis.set("page", "again", { condition: "XX", GET: true, expiration: "KEEPTTL" }), "hello");
  assert.equal(await redis.getEx("page", { type: "PERSIST" }), "again");
  assert.equal(await redis.ttl("page"), -1);
  assert.equal(await redis.getDel("page"), "again");
  assert.equal(await redis.get("page"), null);
  await redis.pSetEx("short", 50, "1");
  await eventually(async () => (await redis.exists("short")) === 0);

  // Many keys, sent together.
  await Promise.all(Array.from({ length: 500 }, (_, i) => redis.set(`many:${i}`, `${i}`)));
  assert.deepEqual(await redis.mGet(["many:0", "none", "many:499"]), ["0", null, "499"]);
  const found = new Set();
  for await (const keys of redis.scanIterator({ MATCH: "many:*", COUNT: 50 })) keys.forEach((key) => found.add(key));
  assert.equal(found.size, 500);
  assert.equal(await redis.del([...found]), 500);

  // Counters and transactions.
  assert.deepEqual(await redis.multi().set("n", "5").incrBy("n", 3).get("n").exec(), ["OK", 8, "8"]);
  assert.equal(Number(await redis.incrByFloat("n", 0.5)), 8.5);
  const other = await redis.duplicate().connect();
  await redis.watch("n");
  await other.set("n", "1");
  await assert.rejects(redis.multi().set("n", "2").exec(), WatchError);
  assert.equal(await redis.get("n"), "1");

  // A lock.
  const options = { condition: "NX", expiration: { type: "PX", value: 10000 } };
  assert.equal(await redis.set("lock", "mine", options), "OK");
  assert.equal(await other.set("lock", "theirs", options), null);
  assert.equal(await redis.eval(RELEASE, { keys: ["lock"], arguments: ["mine"] }), 1);
  other.destroy();

  await assert.rejects(redis.hSet("hash", "field", "value"), /unknown command/);
}

assert.deepEqual(await three.configGet("appendfsync"), { appendfsync: "always" });
assert.match(await three.clientInfo().then((info) => JSON.stringify(info)), /"resp":3/);

// All of it is there when the server was killed; the clients come back by themselves.
await restart();
for (const redis of [two, three]) {
  assert.equal(await redis.get("n"), "1");
  assert.equal(await redis.set("after", "1"), "OK");
  await redis.close();
}
assert.notEqual(lost.length, 0);
