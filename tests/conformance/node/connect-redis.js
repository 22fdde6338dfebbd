// Sessions of express-session in connect-redis, as the middleware calls its store.
import assert from "node:assert/strict";
import { RedisStore } from "connect-redis";
import session from "express-session";
import { createClient } from "redis";
import { eventually, restart, url } from "./site.js";

const client = await createClient({ url }).on("error", () => {}).connect();
const store = new RedisStore({ client, prefix: "sess:", ttl: 100 });
assert(store instanceof session.Store);
const calling = (name) => (...words) =>
  new Promise((done, failed) => store[name](...words, (error, value) => (error ? failed(error) : done(value))));
const [get, set, touch, destroy, length, ids, all, clear] = [
  "get", "set", "touch", "destroy", "length", "ids", "all", "clear",
].map(calling);

const lasting = (ms) => ({ user: "ann", cookie: { originalMaxAge: ms, expires: new Date(Date.now() + ms) } });
await set("one", { user: "ann", cookie: {} });
assert.equal((await get("one")).user, "ann");
assert(((await client.ttl("sess:one")) - 99) ** 2 <= 1);
assert.equal(await get("none"), null);

await set("two", lasting(600000));
await touch("two", lasting(1200000));
assert((await client.ttl("sess:two")) > 1100);
assert.equal(await length(), 2);
assert.deepEqual((await ids()).sort(), ["one", "two"]);
assert.deepEqual((await all()).map(({ user }) => user), ["ann", "ann"]);

await set("short", lasting(1000));
await eventually(async () => (await get("short")) === null);

await destroy("one");
assert.equal(await get("one"), null);

await restart();
assert.equal((await get("two")).user, "ann");
await clear();
assert.equal(await length(), 0);
await client.close();
