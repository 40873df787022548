-- needs: states groups
-- {cursor, whether to mend, ids or nil}: a page of all messages: {cursor that leads on, {id, why, what was done, …}} of
-- those that cannot be read, that were set aside, or that stand in no lane; {id, batch, as what it is counted, …} of members.
local cursor, mends, given_ids = unpack(asked, 1, 3)
local page, answer, counted = nil, {}, {}
if given_ids then
  page = {'0', {}}
  for i = 1, #ARGV[3] / 16 do
    local id = sub(ARGV[3], 16 * i - 15, 16 * i)
    page[2][2 * i - 1], page[2][2 * i] = id, call('HGET', MESSAGES, id) or ''
  end
else
  page = call('HSCAN', MESSAGES, cursor, 'COUNT', 500)
end

local function place_of(record)
  local state, cold = record.state, record.state.cold
  if state.lane ~= READY and state.lane ~= LEASED then return rest_key(state.lane, record.queue), cold.rm or now end
  if state.lane == LEASED then return lease_key(record.priority, record.queue), state.due end
  if not has(state, GROUP) or cold.t == PLACE then return due_key(record.priority, record.queue), state.due end
  if cold.t then
    return parked_key(record.queue, record.group), turn_of(rules(record.queue).strict, cold.pr or 2, cold.t)
  end
  return wait_key(record.queue), cold.wk or now
end

local function tell(id, why, done)
  local n = #answer
  answer[n + 1], answer[n + 2], answer[n + 3] = id, why, done
end

-- A message that was set aside rests dead from now on, if what was put can be read; else it stays.
local function readmit(record)
  local cold = record.state.cold
  call('ZREM', rest_key(QUARANTINE, record.queue), record.member)
  record.state.lane, cold.fk = DEAD, '\0' .. record.task
  call('HSET', STATES, record.id, write_state(record.state))
  call('ZADD', rest_key(DEAD, record.queue), cold.rm or now, record.member)
  call('ZADD', root .. 'f:' .. cold.fk, cold.rm or now, record.member)
  call('SADD', root .. 'fg', cold.fk)
  if cold.bt then
    batches:count(cold.bt, 'quarantine', 'dead')
    batches:write()
    call('ZREM', rest_key('b' .. QUARANTINE, cold.bt), record.member)
    call('ZADD', rest_key('b' .. DEAD, cold.bt), cold.rm or now, record.member)
  end
  call('HDEL', root .. 'x', record.id)
  call('HDEL', root .. 'xw', record.id)
end

for i = 1, #page[2], 2 do
  local id, message = page[2][i], page[2][i + 1]
  if #id == 16 then
    local packed = call('HGET', STATES, id)
    local why = call('HGET', root .. 'xw', id)
    local record, wrong = sound_of(id, message, packed)
    if record and record.batch then
      local n = #counted
      counted[n + 1], counted[n + 2], counted[n + 3] = id, record.batch, record.counted
    end
    if record and why and record.state.lane == QUARANTINE then
      if mends then readmit(record) end
      tell(id, why, 'it is dead, as damaged, without its state')
    elseif record then
      local key, score = place_of(record)
      local ours = ({R = true, L = true, D = true, Q = true, K = true})[record.state.lane] -- not a newer version's
      local at = ours and tonumber(call('ZSCORE', key, record.member) or nil)
      local early = record.state.lane == READY and record.group and record.state.cold.t ~= PLACE -- a line has its own order
      if ours and (not at or (not early and at ~= score)) then
        if mends then
          if record.state.lane == READY or record.state.lane == LEASED then score = math.min(score, now) end
          call('ZADD', key, text_of(score), record.member)
          call('SADD', root .. 'qs', record.queue)
          wake_waiters(record.queue)
        end
        tell(id, at and 'it stands at another time than its own' or 'it stands in no lane', 'it stands in its lane again')
      end
    else
      local state = state_of(packed)
      local whole, put = pcall(read_message, message)
      local queue = state and state.cold.q or whole and type(put.queue) == 'string' and put.queue or ''
      local lost = not whole or wrong == 'what was put cannot be read'
      if mends and #message >= 10 and not why then set_aside(member_of(message, id), queue, nil, wrong) end
      tell(id, why or wrong, lost and '' or 'it was set aside')
    end
  end
end
return {page[1], answer, counted}
