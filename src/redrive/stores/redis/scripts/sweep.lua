-- needs: full states faults cells groups puts settles
-- Forget done messages that were kept long enough, and keys whose time is over and whose message is gone; at most a
-- thousand of each, and fewer long ones; counts of batches, and cells that expired. How many there were of what there were more; a thousand
-- if there are others.
-- Forgets cells that expired, among those that a walk over all of them comes to next; whether there may be many more.
local SWEPT_AT, SWEPT_ONCE, SWEPT_BYTES = root .. 'cs', 500, 4 * 1024 * 1024
local function sweep_cells()
  local cursor, seen, gone, bytes, last = call('GET', SWEPT_AT) or '0', 0, {}, 0, 0
  repeat
    local page = call('HSCAN', CELLS, cursor, 'COUNT', SWEPT_ONCE)
    cursor = page[1]
    for i = 1, #page[2], 2 do
      seen, bytes = seen + 1, bytes + #page[2][i + 1]
      if #page[2][i + 1] >= 17 then -- else it stays, and a check names it
        local version, expires = struct.unpack(CELL, page[2][i + 1])
        if version <= 2 ^ 52 then last = math.max(last, version) end
        if expires > 0 and expires <= now then gone[#gone + 1] = page[2][i] end
      end
    end
  until cursor == '0' or seen >= 2 * SWEPT_ONCE or bytes >= SWEPT_BYTES
  each('HDEL', CELLS, gone)
  if last > (tonumber(call('GET', CELL_VERSIONS) or 0) or 0) then call('SET', CELL_VERSIONS, text_of(last)) end
  if cursor == '0' then call('DEL', SWEPT_AT) else call('SET', SWEPT_AT, cursor) end
  return cursor ~= '0' and 10 * #gone >= seen
end

-- The queue in which it is done; looked for where what was put does not say it.
local function queue_where(member, message)
  local whole, put = pcall(read_message, message)
  local named = whole and type(put.queue) == 'string' and put.queue
  if named and call('ZSCORE', rest_key(DONE, named), member) then return named end
  for _, queue in ipairs(call('SMEMBERS', root .. 'qs')) do
    if call('ZSCORE', rest_key(DONE, queue), member) then return queue end
  end
end

local SWEEP_MAX, SWEEP_BYTES = 1000, 16 * 1024 * 1024
local members = call('ZRANGEBYSCORE', EXPIRIES, '-inf', '(' .. now, 'LIMIT', 0, SWEEP_MAX)
local bytes, more = 0, #members
for _, member in ipairs(members) do
  if bytes >= SWEEP_BYTES then
    more = SWEEP_MAX
    break
  end
  local id = sub(member, 7)
  local message, packed = call('HGET', MESSAGES, id), call('HGET', STATES, id)
  local record, why = sound_of(id, message, packed)
  bytes = bytes + (message and #message or 0)
  if record and record.state.lane ~= DONE then record, why = nil, 'it is to go, though it is not done' end
  if record then
    remove(record, packed, message)
  else
    call('ZREM', EXPIRIES, member)
    local queue = queue_where(member, message)
    if queue then set_aside(member, queue, nil, why) end
  end
end
flush()
admit()
local names = call('ZRANGEBYSCORE', KEYS_UNTIL, '-inf', now, 'LIMIT', 0, SWEEP_MAX)
for _, name in ipairs(names) do
  local held = call('HGET', KEYS_OF, name)
  local id = held and sub(held, 1, 16)
  local message = id and call('HGET', MESSAGES, id)
  local record = message and sound_of(id, message)
  local of = record
  call('ZREM', KEYS_UNTIL, name)
  if of and of.rare.k and key_name(of.task, of.rare.k) == name then
    call('HSET', KEYS_OF, name, id .. struct.pack('>I8', 0)) -- held for its message's life alone from now on
  else
    call('HDEL', KEYS_OF, name)
  end
end
local marked = call('ZRANGEBYSCORE', batches.EXPIRIES, '-inf', '(' .. now, 'LIMIT', 0, SWEEP_MAX)
for _, batch in ipairs(marked) do
  call('ZREM', batches.EXPIRIES, batch)
  local expires = batches.read(call('HGET', batches.COUNTS, batch))[10]
  if expires > 0 and expires < now then -- else it changed since it was marked
    call('HDEL', batches.COUNTS, batch)
    call('ZREM', batches.CHANGED, batch)
    call('ZREM', batches.NAMES, batch)
  end
end
return sweep_cells() and SWEEP_MAX or math.max(more, #names, #marked)
