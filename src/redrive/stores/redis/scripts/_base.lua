-- What every script begins with. KEYS[1] is the root of all keys; ARGV[1] the time, empty for the server's own;
-- ARGV[2] what is asked, as msgpack; from ARGV[3] on bytes that it refers to by their index (cmsgpack reads no binary).
local call, byte, sub = redis.call, string.byte, string.sub
local root = KEYS[1]
local asked = cmsgpack.unpack(ARGV[2])
local now = tonumber(ARGV[1])
if not now then
  local time = call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end

-- What one hash each holds by id: what was put; the state, once it is not that of a fresh message;
-- faults; a checkpoint; a result. By queue: its settings. And the set of groups with more to admit than one script may.
local MESSAGES, STATES, FAULTS, PROGRESS, RESULTS = root .. 'm', root .. 's', root .. 'f', root .. 'p', root .. 'r'
local SETTINGS, unfinished = root .. 'set', root .. 'ga'
if call('EXISTS', root .. 'v') == 1 then -- the namespace has had a batch; see begin_batches.lua
  MESSAGES, STATES, SETTINGS, unfinished = root .. 'm2', root .. 's2', root .. 'set2', root .. 'ga2'
end
local READY, LEASED, DEAD, QUARANTINE, DONE = 'R', 'L', 'D', 'Q', 'K'
local TIME_MAX = 2 ^ 48 - 1 -- a wait ends in the year 10889 at the latest

-- A command over any number of arguments; what it finds, in one table.
local function each(command, key, args)
  local CHUNK = 4000 -- even, and well below what unpack can put on Lua's stack
  local n = #args
  if n == 0 then return {} end
  if n <= CHUNK then return call(command, key, unpack(args)) end
  local values = {}
  for first = 1, n, CHUNK do
    local part = call(command, key, unpack(args, first, math.min(first + CHUNK - 1, n)))
    if type(part) == 'table' then
      for i = 1, #part do values[#values + 1] = part[i] end
    end
  end
  return values
end

-- Whether a text comes before another, byte by byte, as Redis sorts members: Lua's own `<` goes by the server's locale.
local function comes_before(one, other)
  for i = 1, math.min(#one, #other) do
    local a, b = byte(one, i), byte(other, i)
    if a ~= b then return a < b end
  end
  return #one < #other
end

local function due_key(priority, queue) return root .. 'd' .. priority .. ':' .. queue end
-- Those of the due ones that have failed before, once more, so that a claim finds them beside a backlog. A hint: a claim
-- that meets one which is not due drops it.
local function retry_key(priority, queue) return root .. 'a' .. priority .. ':' .. queue end
local function lease_key(priority, queue) return root .. 'l' .. priority .. ':' .. queue end
local function rest_key(lane, queue) return root .. 'r' .. lane .. ':' .. queue end
local function wait_key(queue) return root .. 'w:' .. queue end

-- Workers that wait for this queue must look again (see redis/wake.py). A cluster's nodes tell each other what is
-- published, unless it is published to a shard; Redis 6.2 knows no such thing.
local PUBLISH = redis.REDIS_VERSION_NUM and 'SPUBLISH' or 'PUBLISH'
local function wake_waiters(queue) call(PUBLISH, root .. 'x:' .. queue, '') end
