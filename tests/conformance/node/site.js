// What each script works with: where the server is, and how to have it killed and started again.
import assert from "node:assert/strict";
import { once } from "node:events";
import { setTimeout as sleep } from "node:timers/promises";

export const port = Number(process.argv[2]);
export const database = 9;
export const url = `redis://127.0.0.1:${port}/${database}`;

// Whoever runs the script kills the server without a warning, starts it again, and says so.
export async function restart() {
  process.stdout.write("restart\n");
  await once(process.stdin, "data");
  process.stdin.pause();
}

// Fails unless the check passes within seconds.
export async function eventually(check) {
  const end = Date.now() + 5000;
  while (!(await check())) {
    assert(Date.now() < end, `not within 5 s: ${check}`);
    await sleep(50);
  }
}

// The script of most locks: delete what is still mine.
export const RELEASE = `
if redis.call("get", KEYS[1]) == ARGV[1] then
    return redis.call("del", KEYS[1])
else
    return 0
end`;
