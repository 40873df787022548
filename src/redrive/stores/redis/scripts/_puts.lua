-- Putting. `plan_puts` finds what each draft comes to and writes nothing; `write_puts` writes.
-- A draft's `tail` is an index into ARGV, its zone {priority, queue, batch}; `own` says that its id is not one the store made.
local KEYS_OF, KEYS_UNTIL = root .. 'k', root .. 'ku'
local given_up = {} -- by key: the message that gives it up in this script
local settled_lanes = {} -- by id: what this script makes of stored messages; GONE: nothing
local GONE = 'X'

local function key_name(task, key) return task .. '\0' .. key end

local function hold_key(name, id, until_ms)
  call('HSET', KEYS_OF, name, id .. struct.pack('>I8', until_ms))
  if until_ms > 0 then call('ZADD', KEYS_UNTIL, until_ms, name) else call('ZREM', KEYS_UNTIL, name) end
end

-- Who holds a key, and until when; nobody where that cannot be read.
local function holder_of(name)
  local held = call('HGET', KEYS_OF, name)
  return held and #held >= 24 and held
end

-- What a message held for its life only is free again.
local function free_key(id, message)
  local name = key_name(message.task, message.rare.k)
  local held = holder_of(name)
  if held and sub(held, 1, 16) == id and struct.unpack('>I8', held, 17) == 0 then call('HDEL', KEYS_OF, name) end
end

local holder
do -- (a script has 200 local names at most)
local function word_of(record)
  local WORDS = {[LEASED] = 'leased', [DEAD] = 'dead', [QUARANTINE] = 'quarantine', [DONE] = 'done'}
  local state = record.state
  if state.lane == READY then
    local parked = has(state, GROUP) and state.cold.t ~= PLACE
    return (parked or state.due > now) and 'scheduled' or 'ready'
  end
  return state.cold.r == 'cancelled' and 'cancelled' or WORDS[state.lane]
end

-- Who holds this key: id and the word for its state, or nil. If it waits, its record too, with its marks.
function holder(name)
  local held = holder_of(name)
  if not held then return end
  local id, until_ms = sub(held, 1, 16), (struct.unpack('>I8', held, 17))
  if given_up[name] == id then return end
  local lane, word, waiting = nil, 'done', nil
  local message = settled_lanes[id] ~= GONE and call('HGET', MESSAGES, id)
  if message then
    local record = sound_of(id, message, call('HGET', STATES, id))
    if not record then return id, 'quarantine' end -- damaged, and there
    -- Else it is another message, put later under the id of one that is gone.
    if record.rare.k and key_name(record.task, record.rare.k) == name then
      lane = settled_lanes[id] or record.state.lane
      word = word_of(record)
      if lane == READY then
        waiting = record
        record.marks, record.moves = byte(message, 20), settled_lanes[id] ~= nil
      end
    end
  end
  if (lane == nil or lane == DONE) and until_ms <= now then return end
  return id, word, waiting
end
end

local function due_of(delay, due)
  if due then return math.min(due, TIME_MAX) end
  return delay > 0 and math.min(now + delay + 1, TIME_MAX) or now
end

-- The fields of a draft, of which those from `due` on are there only where it has one of them: index into `zones`, delay,
-- tail, due, key, how long to hold that, own, group, and `taking`: nil, or whether it replaces what waits with its key (else
-- it takes the key over from what does not wait). No table by names: this is for every message.
local function fields_of(draft) return unpack(draft, 1, 9) end
local KEY_AT, KEY_FOR_AT = 5, 6

-- What to write where this draft replaces one that waits: a record, or one that this script is to write, {id, draft, zone}.
-- Nil where it does not: others follow it, or it is settled just now.
local function entry_for(waiting, draft, zone)
  local group, batch, queue
  if waiting.state then
    if waiting.moves or waiting.state.redrives > 0 then return end
    group, batch, queue = waiting.rare.g, waiting.rare.b, waiting.queue
  else
    group, batch, queue = waiting[2][8], waiting[3][3], waiting[3][2]
  end
  if group or batch or queue ~= zone[2] then return end
  if waiting.state then return {waiting.id, draft, zone, waiting} end
  draft[7] = waiting[2][7]
  waiting[2], waiting[3] = draft, zone
  return waiting
end

-- Those to be written, by position {id, word} for those whose key is held, and whether this put was made before and its
-- answer lost. Or nil and the id that is stored already. `again`: it may have been made before. Then an id that the store
-- made proves that it was; where the caller named all, that each is there which no holder of its key kept out.
local function plan_puts(drafts, zones, ids, again)
  local taken, list, duplicates, fresh, made, named, missing = {}, {}, {}, {}, false, nil, false
  local wanted = {}
  for i = 1, #drafts do wanted[i] = sub(ids, 16 * i - 15, 16 * i) end
  local stored = each('HMGET', MESSAGES, wanted)
  for i, draft in ipairs(drafts) do
    local zone, delay, _, due, key, _, own, group, taking = fields_of(draft)
    local id, held, word, waiting = wanted[i], nil, nil, nil
    if key then
      if taken[key] then
        held, word, waiting = unpack(taken[key], 1, 3)
      else
        held, word, waiting = holder(key)
      end
      if held and taking ~= nil and held ~= id then
        local entry = waiting and taking and entry_for(waiting, draft, zones[zone + 1])
        if entry then
          if entry ~= waiting then list[#list + 1] = entry end
          word = due_of(delay, due) > now and 'scheduled' or 'ready'
          taken[key] = {held, word, entry}
          word = '+' .. word
        elseif taking or not waiting then
          held = nil
        end
      end
    end
    local already = stored[i] and settled_lanes[id] ~= GONE
    if held and not (held == id and already and (again or not own)) then
      duplicates[#duplicates + 1] = i
      duplicates[#duplicates + 1] = held
      duplicates[#duplicates + 1] = word
      batches:count(zones[zone + 1][3], nil, 'duplicate')
    elseif fresh[id] or (already and own and not again) then
      return nil, id
    elseif already then
      if own then named = id else made = true end
    else
      fresh[id] = true
      list[#list + 1] = {id, draft, zones[zone + 1]}
      missing = missing or not own or not key
      if key then
        -- One of a group is parked until the end of this script.
        taken[key] = {id, (group or due_of(delay, due) > now) and 'scheduled' or 'ready', list[#list]}
      end
    end
  end
  if named and not made and missing then return nil, named end
  return list, duplicates, made or named
end

local function write_puts(list)
  if #list == 0 then return end
  local number, queues, members = next_numbers(#list) - 1, {}, {}
  for i, one in ipairs(list) do
    local id, draft, zone, waiting = unpack(one, 1, 4)
    local _, delay, tail, fixed, key, key_for, own, group = fields_of(draft)
    local priority, queue, batch = unpack(zone)
    if batch then members[batch] = (members[batch] or 0) + 1 end
    local due, at, first = due_of(delay, fixed), number + i, now
    if waiting then at, first, own = waiting.number, waiting.enqueued, waiting.marks >= OWN end
    local marks = priority + (key and 4 * KEY or 0) + (group and 4 * GROUP or 0) + (own and OWN or 0)
    local head = struct.pack('>BBI8BI8B', 0x98, 0xcf, at, 0xcf, first, marks)
    keep_field(MESSAGES, id, head .. (due == first and '\0' or cmsgpack.pack(due - first)) .. ARGV[tail])
    local member = sub(head, 5, 10) .. id
    if key and not waiting then hold_key(key, id, key_for > 0 and math.min(now + key_for, TIME_MAX) or 0) end
    if waiting then -- it starts over with what was put, under its id and its number
      local was = waiting.state
      leave_due(waiting.priority, queue, member)
      drop(lease_key(waiting.priority, queue), member) -- its state may be gone
      for _, field in ipairs(fault_fields(id, was.faults)) do drop_field(FAULTS, field) end
      if has(was, HAS_PROGRESS) then drop_field(PROGRESS, id) end
      keep_state(id, {lane = READY, fence = was.fence, flags = KEY, attempt = 0, crashes = 0, alone = 0, redrives = 0,
        faults = 0, due = due, life = now, held = 0, worker = '', cold = {n = own and at or nil}})
      add(due_key(priority, queue), due, member)
    elseif group then
      local state = {lane = READY, fence = 0, flags = GROUP + (key and KEY or 0), attempt = 0, crashes = 0, alone = 0,
        redrives = 0, faults = 0, due = due, life = 0, held = 0, worker = '', cold = {n = own and at or nil}}
      join({id = id, member = member, queue = queue, group = group, priority = priority, state = state}, at, due)
      keep_state(id, state)
    else
      add(due_key(priority, queue), due, member)
    end
    queues[queue] = true
  end
  for batch, many in pairs(members) do batches:count(batch, nil, 'open', many) end
  spread(MESSAGES)
  flush()
  admit()
  for queue in pairs(queues) do
    call('SADD', root .. 'qs', queue)
    wake_waiters(queue)
  end
end
