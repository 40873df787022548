-- Groups: who has a place (a set per group), who is parked for one (a sorted set by turn), who waits for its time (a
-- sorted set per queue). Whatever frees a place or brings somebody ends with `admit`, in the same script.
local touched, rules_of, admitted, admitted_to = {}, {}, 0, {}

local function places_key(queue, group) return root .. 't:' .. queue .. '\0' .. group end

local function rules(queue)
  local known = rules_of[queue]
  if not known then
    local said = settings_of(call('HGET', SETTINGS, queue))
    local strict = said.order == 'strict'
    known = {said = said, paused = said.paused, strict = strict, block = strict and said.on_dead == 'block',
      width = said.width or 1}
    rules_of[queue] = known
  end
  return known
end

local function width_of(queue, group)
  local own = call('HMGET', root .. 'gw:' .. queue, group, '')
  return tonumber(own[1] or own[2] or rules(queue).width) or 1
end

local function touch(queue, group)
  local groups = touched[queue]
  if not groups then
    groups = {}
    touched[queue] = groups
  end
  groups[group] = true
end

-- A turn: the priority, where it counts, above the number by which one joined.
local function turn_of(strict, priority, number) return strict and number or priority * 2 ^ 50 + number end

local function park(record, number)
  local cold = record.state.cold
  cold.t, cold.pk = number, now
  call('ZADD', parked_key(record.queue, record.group), turn_of(rules(record.queue).strict, record.priority, number),
    record.member)
  call('SADD', names_key(record.queue), record.group)
  count_parked(record.queue, 1)
  touch(record.queue, record.group)
end

-- It joins its group. Strict groups go by number alone; others by priority first, and what is not due yet does not join
-- before its time.
local function join(record, number, due)
  local cold, later = record.state.cold, due > now
  cold.g, cold.pr = record.group, record.priority
  cold.t, cold.wk = nil, later and due or nil
  if later and not rules(record.queue).strict then
    call('ZADD', wait_key(record.queue), due, record.member)
  else
    park(record, number)
  end
end

-- It stands nowhere in its group any more.
local function leave(record)
  local cold, queue, group = record.state.cold, record.queue, record.group
  if cold.t == PLACE then
    call('SREM', places_key(queue, group), record.member)
    touch(queue, group)
  elseif cold.t then
    if call('ZREM', parked_key(queue, group), record.member) == 1 then count_parked(queue, -1) end
    touch(queue, group)
  elseif cold.wk then
    call('ZREM', wait_key(queue), record.member)
  end
  cold.t, cold.wk, cold.pk = nil, nil, nil
end

-- After a settlement: whether it keeps its place. It does if its wait has no length, or if its group is strict and it is
-- neither done nor skipped.
local function keeps_place(record)
  local lane, of = record.state.lane, rules(record.queue)
  if lane == READY then return of.strict or record.state.due <= now end
  return lane ~= DONE and of.block
end

local function place(record, places)
  local state, cold = record.state, record.state.cold
  local wake = cold.wk or 0
  state.held = state.held + math.max(0, now - math.max(cold.pk or now, wake))
  state.due = math.max(now, wake)
  cold.t, cold.wk, cold.pk = PLACE, nil, nil
  call('SADD', places, record.member)
  call('HSET', STATES, record.id, write_state(state))
  call('ZADD', due_key(cold.pr, record.queue), state.due, record.member)
  if state.attempt > 0 then call('ZADD', retry_key(cold.pr, record.queue), state.due, record.member) end
  count_parked(record.queue, -1)
  admitted = admitted + 1
  admitted_to[record.queue] = true
end

local function admit_to(queue, group)
  local ADMIT_MAX = 1000 -- in one script; the groups that want more stand in `unfinished`
  local places, parked = places_key(queue, group), parked_key(queue, group)
  local taken, width = call('SCARD', places), width_of(queue, group)
  while taken < width do
    if admitted >= ADMIT_MAX then
      call('SADD', unfinished, queue .. '\0' .. group)
      return
    end
    local first
    repeat first = call('ZPOPMIN', parked)[1] until not first or is_member(first)
    if not first then break end
    local id = sub(first, 7)
    local state, why = state_of(call('HGET', STATES, id))
    if state and not has(state, GROUP) then state, why = nil, 'its state names no group' end
    local rests = state and (state.lane == DEAD or state.lane == QUARANTINE or state.lane == DONE)
    if state and not rests then
      place({id = id, member = first, queue = queue, state = state}, places)
      taken = taken + 1
    elseif state then -- it ended while its state named no turn
      count_parked(queue, -1)
    else
      count_parked(queue, -1)
      set_aside(first, queue, nil, why)
    end
  end
  if taken == 0 then call('SREM', names_key(queue), group) end
end

-- Give the free places of the touched groups to those who are parked, in their order.
local function admit()
  for queue, groups in pairs(touched) do
    for group in pairs(groups) do admit_to(queue, group) end
  end
  touched = {}
end

-- Go on with what an earlier script left.
local function finish_admitting()
  if call('SCARD', unfinished) == 0 then return end
  for _, name in ipairs(call('SPOP', unfinished, 100)) do
    local queue, group = string.match(name, '^(%Z*)%z(.*)$')
    touch(queue, group)
  end
  admit()
end

-- Let those whose wait is over join their lines, the longest due first.
local function wake(queue, limit)
  local woken = call('ZRANGEBYSCORE', wait_key(queue), '-inf', now, 'LIMIT', 0, math.max(limit, 100))
  if #woken == 0 then return end
  each('ZREM', wait_key(queue), woken)
  woken = members_of(woken)
  local number = next_numbers(#woken)
  for i, member in ipairs(woken) do
    local id = sub(member, 7)
    local state, why = state_of(call('HGET', STATES, id))
    if state and has(state, GROUP) then
      state.cold.wk = nil
      park({id = id, member = member, queue = queue, group = state.cold.g, priority = state.cold.pr, state = state},
        number + i - 1)
      call('HSET', STATES, id, write_state(state))
    else
      set_aside(member, queue, nil, why or 'its state names no group')
    end
  end
  admit()
end
