-- A message as bytes. What was put: an array of its number, when it was enqueued, priority and marks, how much later it
-- is due, task, queue, rarely set parts (or {its batch}, if that is all), body; the first three at fixed offsets. A state: a
-- fixed head, then the worker, or a map of all that is rarely set (COLD). A member of a sorted set is number and id, so
-- that what is due at the same time keeps the order of putting.
local KEY, GROUP, HAS_FAULTS, HAS_PROGRESS, CANCEL, SUSPECT, ALONE, COLD = 1, 2, 4, 8, 16, 32, 64, 128
local BESIDE = 16 -- flags % BESIDE: something of it lies elsewhere, and goes with it
local OWN = 16 -- in the marks of what was put: its id is not one the store made
local HEAD, TAIL = '>c1I4BI4I4I4I4BI8I8I8', 48
local PLACE = 0 -- the turn of a message that holds a place in its group; parked ones have higher turns, all others none

local function number_of(member) return (struct.unpack('>I6', member)) end
-- What else a set has is no message's, and is left out wherever a set is read.
local function is_member(member) return #member == 22 end

local function members_of(members)
  local valid = {}
  for _, member in ipairs(members) do
    if is_member(member) then valid[#valid + 1] = member end
  end
  return valid
end

local function has(state, flag) return bit.band(state.flags, flag) ~= 0 end
local function mark(state, flag) state.flags = bit.bor(state.flags, flag) end
local function unmark(state, flag) state.flags = bit.band(state.flags, bit.bnot(flag)) end

local function read_state(packed)
  local lane, fence, flags, attempt, crashes, alone, redrives, faults, due, life, held = struct.unpack(HEAD, packed)
  local state = {lane = lane, fence = fence, flags = flags, attempt = attempt, crashes = crashes, alone = alone,
    redrives = redrives, faults = faults, due = due, life = life, held = held}
  if flags >= COLD then
    state.cold = cmsgpack.unpack(sub(packed, TAIL))
    state.worker = state.cold.w or ''
  else
    state.cold = {}
    state.worker = sub(packed, TAIL)
  end
  return state
end

local function write_state(state)
  local cold, tail, flags = state.cold, state.worker, bit.band(state.flags, COLD - 1)
  cold.w = nil
  if next(cold) then
    if tail ~= '' then cold.w = tail end
    flags, tail = flags + COLD, cmsgpack.pack(cold)
  end
  return struct.pack(HEAD, state.lane, state.fence, flags, state.attempt, state.crashes, state.alone, state.redrives,
    state.faults, state.due, state.life, state.held) .. tail
end

-- Whether a receipt of this fence, as packed, is the current claim's. An id that its caller chose may have been another
-- message's before: of such a one the state knows the number, which stands in the member.
local function is_current(packed, fence, member)
  if not packed or byte(packed, 1) ~= 76 or sub(packed, 2, 5) ~= fence then return false end -- 76: L
  if #packed < TAIL - 1 then return false end
  if byte(packed, 6) < COLD then return true end
  local whole, cold = pcall(cmsgpack.unpack, sub(packed, TAIL))
  if not whole or type(cold) ~= 'table' then return false end
  return not cold.n or cold.n == number_of(member)
end

local function priority_of(message) return byte(message, 20) % 4 end
local function flags_of(message) return math.floor(byte(message, 20) / 4) % 4 end -- those that it is put with
local function enqueued_of(message) return (struct.unpack('>I8', message, 12)) end
local function member_of(message, id) return sub(message, 5, 10) .. id end

-- What was put, but the body.
local function read_message(message)
  local _, number, enqueued, marks, delta, task, queue, rare = cmsgpack.unpack_limit(message, 7, 1)
  if type(rare) == 'table' and rare[1] then rare = {b = rare[1]} end
  return {number = number, enqueued = enqueued, due = enqueued + delta, task = task, queue = queue, rare = rare or {}}
end

local function task_of(message)
  local whole, _, _, _, _, _, task = pcall(cmsgpack.unpack_limit, message, 5, 1)
  return whole and type(task) == 'string' and task or ''
end

-- The counts of a batch: a field of one hash, with the numbers of BatchCounts in their order and then when they go, or 0.
-- Moves of members are collected, and written once per batch by `batches.write`. `CHANGED` has the batches that must be
-- looked at, `NAMES` all, `EXPIRIES` those that go, `FAILED` those with a dead or quarantined member. Such members stand in
-- sets as those of a queue, with a letter more. `AS`: as what a message at rest is counted, by its lane; all others are open. (A function takes long to find
-- its outer names. So these have few.)
local batches = {COUNTS = root .. 'b', CHANGED = root .. 'bc', NAMES = root .. 'bn', EXPIRIES = root .. 'be',
  FAILED = root .. 'bf', changes = {}, named = {},
  AS = {[DEAD] = 'dead', [QUARANTINE] = 'quarantine', [DONE] = 'done'}}

-- So many members are counted as `new` instead of `old`; nil: not at all.
function batches:count(batch, old, new, many)
  many = many or 1
  if not batch or old == new or many == 0 then return end
  local by = self.changes[batch]
  if not by then
    by = {open = 0, done = 0, dead = 0, quarantine = 0, cancelled = 0, discarded = 0, duplicate = 0, opened = 0, died = 0}
    self.changes[batch] = by
  end
  if old then by[old] = by[old] - many end
  if new then by[new] = by[new] + many end
  if new == 'open' then by.opened = by.opened + many end
  if old == 'open' then
    by.settled = true
    if new == 'dead' or new == 'quarantine' then by.died = by.died + many end
  end
end

-- The numbers; zeros where they cannot be read.
function batches.read(packed)
  local whole, counts = pcall(cmsgpack.unpack, packed or '')
  local read = whole and type(counts) == 'table' and counts or {}
  for at = 1, 10 do read[at] = type(read[at]) == 'number' and read[at] or 0 end
  return read
end

-- Write what was counted. `named` has the batches of which a member died, or was settled with nothing open after it.
function batches:write()
  if not next(self.changes) then return end
  local FIELDS = {'open', 'done', 'dead', 'quarantine', 'cancelled', 'discarded', 'duplicate', 'opened', 'died'}
  local ids, rows, first, news, others, failed, mended = {}, {}, {}, {}, {}, {}, {}
  for batch in pairs(self.changes) do ids[#ids + 1] = batch end
  for i, packed in ipairs(each('HMGET', self.COUNTS, ids)) do
    local batch, by, counts = ids[i], self.changes[ids[i]], self.read(packed)
    for at, field in ipairs(FIELDS) do counts[at] = counts[at] + by[field] end
    counts[10] = 0
    rows[2 * i - 1], rows[2 * i] = batch, cmsgpack.pack(counts)
    if not packed then
      first[#first + 1] = 0
      first[#first + 1] = batch
    end
    if by.died > 0 or (by.settled and counts[1] <= 0) then self.named[#self.named + 1] = batch end
    if counts[1] <= 0 or counts[3] + counts[4] > 0 then
      news[#news + 1] = 0
      news[#news + 1] = batch
    elseif packed then
      others[#others + 1] = batch
    end
    if by.dead ~= 0 or by.quarantine ~= 0 then
      if counts[3] + counts[4] > 0 then
        failed[#failed + 1] = 0
        failed[#failed + 1] = batch
      else
        mended[#mended + 1] = batch
      end
    end
  end
  each('HSET', self.COUNTS, rows)
  each('ZADD', self.NAMES, first)
  each('ZADD', self.CHANGED, news)
  each('ZREM', self.CHANGED, others)
  each('ZADD', self.FAILED, failed)
  each('ZREM', self.FAILED, mended)
  self.changes = {}
end

-- All that a script may need to know of one message.
local function record_of(id, message, packed)
  local record = read_message(message)
  record.id, record.member, record.priority = id, member_of(message, id), priority_of(message)
  if packed then
    record.state = read_state(packed)
  else
    local own = byte(message, 20) >= OWN
    record.state = {lane = READY, fence = 0, flags = flags_of(message), attempt = 0, crashes = 0, alone = 0, redrives = 0,
      faults = 0, due = record.due, life = 0, held = 0, worker = '', cold = {n = own and number_of(record.member) or nil}}
  end
  record.put_queue = record.queue
  record.queue = record.state.cold.q or record.queue
  record.group = record.state.cold.g
  if not record.state.cold.lb then record.batch = record.rare.b end
  record.counted = batches.AS[record.state.lane] or 'open'
  return record
end

local function parked_key(queue, group) return root .. 'p:' .. queue .. '\0' .. group end
local function names_key(queue) return root .. 'gn:' .. queue end

-- What was said of a queue. Where that cannot be read it counts as paused: it may have been, and a resume writes it anew.
local function settings_of(packed)
  if not packed then return {} end
  local whole, said = pcall(cmsgpack.unpack, packed)
  if not whole or type(said) ~= 'table' then return {paused = true} end
  if type(said.width) ~= 'number' then said.width = nil end
  return said
end

local function parked_in(queue)
  local parked = 0
  for _, group in ipairs(call('SMEMBERS', names_key(queue))) do parked = parked + call('ZCARD', parked_key(queue, group)) end
  return parked
end

-- Add to how many of a queue are parked in its groups; they are counted anew where that is no number.
local function count_parked(queue, by)
  if type(redis.pcall('HINCRBY', root .. 'pn', queue, by)) ~= 'number' then
    call('HSET', root .. 'pn', queue, parked_in(queue))
  end
end

-- Damage. Whatever reads a message before it writes anything asks first whether it can be read. One that cannot is set
-- aside: it leaves every place it stands in for the quarantine lane, and its member and its state as it was are kept in a
-- hash beside.
local state_of, sound_of, set_aside, aside = nil, nil, nil, {}
do
local DAMAGED, WHY = root .. 'x', root .. 'xw'
local RESTING = {[DEAD] = true, [QUARANTINE] = true, [DONE] = true}
local TYPES = {g = 'string', q = 'string', w = 'string', r = 'string', fk = 'string', fp = 'string', t = 'number',
  wk = 'number', rm = 'number', pk = 'number', pr = 'number', ex = 'number', n = 'number', b = 'table', bt = 'string'}

-- The state, or nil and why it cannot be read.
function state_of(packed)
  if not packed then return nil, 'it has no state' end
  if #packed < TAIL - 1 then return nil, 'its state is cut off' end
  local whole, state = pcall(read_state, packed)
  if not whole or type(state.cold) ~= 'table' then return nil, 'what is rarely set of its state cannot be read' end
  if not string.match(state.lane, '%u') then return nil, 'its state is in no lane' end -- a letter more is a newer version's
  for name, kind in pairs(TYPES) do
    local value = state.cold[name]
    if value ~= nil and type(value) ~= kind then return nil, 'part ' .. name .. ' of its state is no ' .. kind end
    if kind == 'number' and value and not (value >= 0 and value <= 2 ^ 53 and value % 1 == 0) then
      return nil, 'part ' .. name .. ' of its state is out of its range'
    end
  end
  if math.max(state.fence, state.attempt, state.crashes, state.alone, state.redrives) >= 2 ^ 31
    or math.max(state.due, state.life, state.held) > 2 ^ 53 then
    return nil, 'a number of its state is out of its range'
  end
  local cold = state.cold
  if has(state, GROUP) then
    if cold.g == nil or cold.pr == nil then return nil, 'its state names no group' end
    if cold.pr > 3 then return nil, 'its state has no priority' end
    if state.lane == LEASED and cold.t ~= PLACE then return nil, 'it is leased without a place in its group' end
  end
  if RESTING[state.lane] and not cold.rm then return nil, 'its state does not say since when it rests' end
  return state
end

-- The record of a message, or nil and why it cannot be read.
function sound_of(id, message, packed)
  if not message then return nil, 'what was put is gone' end
  if packed then
    local state, why = state_of(packed)
    if not state then return nil, why end
  end
  local whole, record = pcall(record_of, id, message, packed)
  if not whole or type(record.task) ~= 'string' or type(record.queue) ~= 'string' or type(record.rare) ~= 'table' then
    return nil, 'what was put cannot be read'
  end
  local key, group, batch = record.rare.k, record.rare.g, record.rare.b
  if (key and type(key) ~= 'string') or (group and type(group) ~= 'string') or (batch and type(batch) ~= 'string') then
    return nil, 'what was put cannot be read'
  end
  return record
end

-- It stands in the line or holds a place of one of these groups no more; whether it did.
local function left(member, queue, groups)
  for _, group in pairs(groups) do
    local name = queue .. '\0' .. group
    local parked = call('ZREM', root .. 'p:' .. name, member)
    if parked == 1 then count_parked(queue, -1) end
    if parked + call('SREM', root .. 't:' .. name, member) > 0 then
      call('SADD', unfinished, name) -- the next exchange lets in who waits for its place
      return true
    end
  end
end

-- It leaves its group: what was put or its state names that, or it is looked for where neither can be read.
local function leave_group(member, queue, message, packed)
  local groups = {}
  local whole, put = pcall(read_message, message)
  if whole and type(put.rare) == 'table' and type(put.rare.g) == 'string' then groups[1] = put.rare.g end
  local read, state = pcall(read_state, packed)
  if read and type(state.cold) == 'table' and type(state.cold.g) == 'string' then groups[#groups + 1] = state.cold.g end
  local plain = whole and #message >= 20 and flags_of(message) < GROUP
  if left(member, queue, groups) or plain then return end
  left(member, queue, call('SMEMBERS', root .. 'gn:' .. queue))
end

-- It stood in `queue`, with this priority if that is known. A message that has nothing left but its place is not set aside.
-- `batch`: that of the message, if it is known; else what was put or its state may name it.
function set_aside(member, queue, priority, why, batch)
  local id = sub(member, 7)
  local message, packed = call('HGET', MESSAGES, id), call('HGET', STATES, id)
  local faults = packed and byte(packed, 23) or 0
  for at = priority or 0, priority or 3 do
    for _, key in ipairs({due_key(at, queue), retry_key(at, queue), lease_key(at, queue)}) do call('ZREM', key, member) end
  end
  call('ZREM', wait_key(queue), member)
  local counted = 'open'
  for lane, word in pairs(batches.AS) do
    if call('ZREM', rest_key(lane, queue), member) == 1 then counted = word end
  end
  if not is_member(member) then return end
  leave_group(member, queue, message, packed)
  if not message and not packed then return end
  call('HSETNX', DAMAGED, id, member .. (packed or ''))
  call('HSET', WHY, id, why)
  local state = {lane = QUARANTINE, fence = 0, flags = message and #message >= 20 and flags_of(message) % 2 or 0, attempt = 0, crashes = 0,
    alone = 0, redrives = 0, faults = 0, due = 0, life = 0, held = 0, worker = '',
    cold = {r = 'damaged', rm = now, q = queue}}
  if faults > 0 and faults < 30 then state.faults, state.flags = faults, state.flags + HAS_FAULTS end
  if call('HEXISTS', PROGRESS, id) == 1 then mark(state, HAS_PROGRESS) end
  local whole, put = pcall(read_message, message)
  local read, was = pcall(read_state, packed)
  local cold = read and type(was.cold) == 'table' and was.cold or {}
  if not batch and whole and type(put.rare) == 'table' then batch = put.rare.b end
  batch, state.cold.lb = batch or cold.bt, cold.lb
  if type(batch) == 'string' and not cold.lb then
    batches:count(batch, counted == 'done' and cold.r == 'cancelled' and cold.r or counted, 'quarantine')
    batches:write()
    call('ZREM', rest_key('b' .. DEAD, batch), member)
    call('ZADD', rest_key('b' .. QUARANTINE, batch), now, member)
    state.cold.bt = batch
  end
  call('HSET', STATES, id, write_state(state))
  call('ZADD', rest_key(QUARANTINE, queue), now, member)
  call('SADD', root .. 'qs', queue)
  aside[#aside + 1] = id
end
end

-- A number as a command takes it. Redis would write each argument of its own, with the digits of a fraction.
local texts = {}
local function text_of(number)
  local text = texts[number]
  if not text then
    text = string.format('%.0f', number)
    texts[number] = text
  end
  return text
end

-- Changes are collected, and written by `flush`: first what goes, then what comes.
local dropped, added, gone, kept = {}, {}, {}, {}

local function collect(into, key, first, second)
  local list = into[key]
  if not list then
    list = {}
    into[key] = list
  end
  list[#list + 1] = first
  if second ~= nil then list[#list + 1] = second end
end

local function drop(key, member) collect(dropped, key, member) end
local function add(key, score, member) collect(added, key, text_of(score), member) end
-- It may be claimed from its due time on, or no more.
local function enter_due(priority, queue, state, member)
  add(due_key(priority, queue), state.due, member)
  if state.attempt > 0 then add(retry_key(priority, queue), state.due, member) end
end

local function leave_due(priority, queue, member)
  drop(due_key(priority, queue), member)
  drop(retry_key(priority, queue), member)
end

local function drop_field(hash, field) collect(gone, hash, field) end
local function keep_field(hash, field, value) collect(kept, hash, field, value) end
local function keep_state(id, state) collect(kept, STATES, id, write_state(state)) end

-- Small sets and hashes are lists that Redis searches from their front, entry by entry: a batch of hundreds costs its
-- square before it is a set. One is never a list again once it held a value this long.
local LONG, MANY = string.rep(' ', 65), 64

local function spread(hash)
  if call('HEXISTS', hash, '') == 0 then call('HSET', hash, '', LONG) end
end

-- Scores and members, in one table.
local function add_all(key, scored)
  if #scored < MANY then return each('ZADD', key, scored) end
  call('ZADD', key, 0, LONG)
  each('ZADD', key, scored)
  call('ZREM', key, LONG)
end

local function flush()
  for key, members in pairs(dropped) do each('ZREM', key, members) end
  for key, fields in pairs(gone) do each('HDEL', key, fields) end
  for key, scored in pairs(added) do add_all(key, scored) end
  for key, fields in pairs(kept) do each('HSET', key, fields) end
  dropped, added, gone, kept = {}, {}, {}, {}
end

-- The first of so many numbers that no message has. Where the counter is none, or beyond what a member holds, it goes on
-- where it cannot have been yet: at sixteen for each millisecond of the clock.
local function next_numbers(count)
  local last = redis.pcall('INCRBY', root .. 'n', count)
  if type(last) ~= 'number' or last < count or last >= 2 ^ 48 then
    last = now * 16 + count
    call('SET', root .. 'n', text_of(last))
  end
  return last - count + 1
end
