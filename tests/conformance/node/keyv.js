// What users of Keyv do with @keyv/redis.
import assert from "node:assert/strict";
import KeyvRedis from "@keyv/redis";
import Keyv from "keyv";
import { eventually, restart, url } from "./site.js";

const cache = (namespace) => new Keyv({ store: new KeyvRedis(url), namespace }).on("error", () => {});
const [users, pages] = [cache("users"), cache("pages")];

await users.set("ann", { name: "Ann", visits: [1, 2] });
assert.deepEqual(await users.get("ann"), { name: "Ann", visits: [1, 2] });
assert.equal(await pages.get("ann"), undefined);
assert.equal(await users.has("ann"), true);

await users.set("short", "1", 50);
await eventually(async () => (await users.get("short")) === undefined);

await users.setMany(Array.from({ length: 50 }, (_, i) => ({ key: `k${i}`, value: i, ttl: 60000 })));
assert.deepEqual(await users.getMany(["k0", "none", "k49"]), [0, undefined, 49]);
assert.equal(await users.delete("k0"), true);
assert.equal(await users.delete("k0"), false);
assert.equal(await users.deleteMany(["k1", "k2"]), true);

const found = [];
for await (const [key] of users.iterator()) found.push(key);
assert.equal(found.length, 48); // ann, and k3 to k49

await pages.set("home", "<html>");
await users.clear();
assert.equal(await users.get("ann"), undefined);
assert.equal(await pages.get("home"), "<html>");

await restart();
await eventually(async () => (await pages.get("home")) === "<html>");
// The other client has a connection of its own, and must not be asked to end while it connects again.
await eventually(async () => (await users.set("back", 1)) && (await users.get("back")) === 1);
await Promise.all([users.disconnect(), pages.disconnect()]);
