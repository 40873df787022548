-- Putting. `plan_puts` finds what each draft comes to and writes nothing; `write_puts` writes.
-- A draft is {zone, delay, tail, due, key, key_for, own, group}: zone an index into `zones`, tail an index into ARGV, and
-- due, key, group only where it has them; `own` says that its id is not one the store made. A zone is {priority, queue}.
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

local function word_of(record)
  local WORDS = {[LEASED] = 'leased', [DEAD] = 'dead', [QUARANTINE] = 'quarantine', [DONE] = 'done'}
  local state = record.state
  if state.lane == READY then
    local parked = has(state, GROUP) and state.cold.t ~= PLACE
    return (parked or state.due > now) and 'scheduled' or 'ready'
  end
  return state.cold.r == 'cancelled' and 'cancelled' or WORDS[state.lane]
end

-- Who holds this key: id and the word for its state, or nil.
local function holder(name)
  local held = holder_of(name)
  if not held then return end
  local id, until_ms = sub(held, 1, 16), (struct.unpack('>I8', held, 17))
  if given_up[name] == id then return end
  local lane, word = nil, 'done'
  local message = settled_lanes[id] ~= GONE and call('HGET', MESSAGES, id)
  if message then
    local record = sound_of(id, message, call('HGET', STATES, id))
    if not record then return id, 'quarantine' end -- damaged, and there
    -- Else it is another message, put later under the id of one that is gone.
    if record.rare.k and key_name(record.task, record.rare.k) == name then
      lane = settled_lanes[id] or record.state.lane
      word = word_of(record)
    end
  end
  if (lane == nil or lane == DONE) and until_ms <= now then return end
  return id, word
end

local function due_of(draft)
  if draft[4] then return math.min(draft[4], TIME_MAX) end
  return draft[2] > 0 and math.min(now + draft[2] + 1, TIME_MAX) or now
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
    local id, held, word = wanted[i], nil, nil
    if draft[5] then
      if taken[draft[5]] then
        held, word = unpack(taken[draft[5]])
      else
        held, word = holder(draft[5])
      end
    end
    local already = stored[i] and settled_lanes[id] ~= GONE
    if held and not (held == id and already and (again or not draft[7])) then
      duplicates[#duplicates + 1] = i
      duplicates[#duplicates + 1] = held
      duplicates[#duplicates + 1] = word
    elseif fresh[id] or (already and draft[7] and not again) then
      return nil, id
    elseif already then
      if draft[7] then named = id else made = true end
    else
      fresh[id] = true
      list[#list + 1] = {id, draft, zones[draft[1] + 1]}
      missing = missing or not draft[7] or not draft[5]
      if draft[5] then
        -- One of a group is parked until the end of this script.
        taken[draft[5]] = {id, (draft[8] or due_of(draft) > now) and 'scheduled' or 'ready'}
      end
    end
  end
  if named and not made and missing then return nil, named end
  return list, duplicates, made or named
end

local function put_in_group(id, draft, priority, queue, member, number, due)
  local state = {lane = READY, fence = 0, flags = GROUP + (draft[5] and KEY or 0), attempt = 0, crashes = 0, alone = 0,
    redrives = 0, faults = 0, due = due, life = 0, held = 0, worker = '', cold = {n = draft[7] and number or nil}}
  join({id = id, member = member, queue = queue, group = draft[8], priority = priority, state = state}, number, due)
  keep_state(id, state)
end

local function write_puts(list)
  if #list == 0 then return end
  local number, queues = next_numbers(#list) - 1, {}
  for i, one in ipairs(list) do
    local id, draft, zone = one[1], one[2], one[3]
    local priority, queue, due = zone[1], zone[2], due_of(draft)
    local marks = priority + (draft[5] and 4 * KEY or 0) + (draft[8] and 4 * GROUP or 0) + (draft[7] and OWN or 0)
    local head = struct.pack('>BBI8BI8B', 0x98, 0xcf, number + i, 0xcf, now, marks)
    keep_field(MESSAGES, id, head .. (due == now and '\0' or cmsgpack.pack(due - now)) .. ARGV[draft[3]])
    local member = sub(head, 5, 10) .. id
    if draft[5] then hold_key(draft[5], id, draft[6] > 0 and math.min(now + draft[6], TIME_MAX) or 0) end
    if draft[8] then
      put_in_group(id, draft, priority, queue, member, number + i, due)
    else
      add(due_key(priority, queue), due, member)
    end
    queues[queue] = true
  end
  spread(MESSAGES)
  flush()
  admit()
  for queue in pairs(queues) do
    call('SADD', root .. 'qs', queue)
    wake_waiters(queue)
  end
end
