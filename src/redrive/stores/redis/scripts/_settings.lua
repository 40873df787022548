-- Settings of a queue's groups, and what changes with them for who stands in line.

local function widths_key(queue) return root .. 'gw:' .. queue end

-- {width for all, whether some group has another than 1, order, on_dead} if they contradict each other.
local function contradiction(said, widths)
  local width, own = tonumber(widths[''] or said.width or 1), 0
  for group, of in pairs(widths) do
    if group ~= '' and tonumber(of) ~= 1 then own = 1 end
  end
  local order, on_dead = said.order or 'turns', said.on_dead or 'skip'
  if (order == 'strict' and (width ~= 1 or own == 1)) or (on_dead == 'block' and order ~= 'strict') then
    return {'refused', width, own, order, on_dead}
  end
end

local function widths_of(queue)
  local rows, widths = call('HGETALL', widths_key(queue)), {}
  for i = 1, #rows, 2 do widths[rows[i]] = rows[i + 1] end
  return widths
end

local function each_record(queue, group, members, work)
  for _, member in ipairs(members_of(members)) do
    local id = sub(member, 7)
    local state, why = state_of(call('HGET', STATES, id))
    if state and state.cold.pr then
      local record = {id = id, member = member, queue = queue, group = group, state = state, priority = state.cold.pr}
      if work(record, state, state.cold) then call('HSET', STATES, id, write_state(state)) end
    else
      set_aside(member, queue, nil, why or 'its state names no priority')
    end
  end
end

-- Who stands in line stands there by the other order now; what is not due yet has a turn only where it is strict.
local function reorder(queue, group, strict)
  local line, waits = parked_key(queue, group), wait_key(queue)
  each_record(queue, group, call('ZRANGE', line, 0, -1), function(record, _, cold)
    if not strict and cold.wk and cold.wk > now then
      call('ZREM', line, record.member)
      call('ZADD', waits, cold.wk, record.member)
      count_parked(queue, -1)
      cold.t = nil
      return true
    end
    call('ZADD', line, turn_of(strict, record.priority, cold.t or number_of(record.member)), record.member)
  end)
  if strict then return end
  each_record(queue, group, call('SMEMBERS', places_key(queue, group)), function(record, state, cold)
    if state.lane ~= READY or state.due <= now then return end
    call('SREM', places_key(queue, group), record.member)
    call('ZREM', due_key(record.priority, queue), record.member)
    call('ZREM', retry_key(record.priority, queue), record.member)
    call('ZADD', waits, state.due, record.member)
    cold.t, cold.wk = nil, state.due
    return true
  end)
end

-- No dead head holds this group any more.
local function unblock(queue, group)
  each_record(queue, group, call('SMEMBERS', places_key(queue, group)), function(record, state, cold)
    if state.lane ~= DEAD and state.lane ~= QUARANTINE then return end
    call('SREM', places_key(queue, group), record.member)
    cold.t = nil
    return true
  end)
end

local function touch_all(queue)
  for _, group in ipairs(call('SMEMBERS', names_key(queue))) do touch(queue, group) end
end
