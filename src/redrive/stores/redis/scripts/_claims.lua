-- Claiming. A lease is a delay: leased messages stand by their leases' ends in sets of their own, so that the work of a
-- claim does not grow with what is delayed; those that ran out are merged with what is due.
local has_due, claim
do -- (a script has 200 local names at most)
local CLAIM_BYTES = 16 * 1024 * 1024 -- a claim stops when what it gives is longer together
local CLAIM_CHUNK = 250 -- messages that are read together

-- What a claimed message has beside what was put: {its number, state, how many faults, progress, when it was due}. The
-- faults follow all.
local function tell(answer, i, id, state, due)
  local rare, count = answer.rare, byte(state, 23)
  local n = #rare
  if count > 0 then
    for _, field in ipairs(fault_fields(id, count)) do answer.fields[#answer.fields + 1] = field end
  end
  rare[n + 1], rare[n + 2], rare[n + 3] = answer.count + i - 1, state, math.min(count, 2 * ENDS)
  rare[n + 4] = bit.band(byte(state, 6), HAS_PROGRESS) ~= 0 and call('HGET', PROGRESS, id)
  rare[n + 5] = due
end

-- What a lease makes of these messages: their states as fields and values, and those of them that had failed before.
-- It writes nothing, and raises where one of them cannot be read.
local function leased(messages, packed, ids, members, first, worker, untl, answer)
  local ends = struct.pack('>I8', untl)
  local states, fresh, again = {}, {}, {}
  for i = 1, #ids do
    local state = packed[i]
    if not messages[i] or #ids[i] ~= 16 then error('what was put is gone') end
    if state and byte(state, 1) == 82 and byte(state, 6) < ALONE then -- 82: R; nothing of it is rare
      local fence, flags, attempt = struct.unpack('>I4BI4', state, 2)
      if #state < TAIL - 1 then error('its state is cut off') end
      if attempt > 0 then again[#again + 1] = members[first + i - 1] end
      local due = struct.unpack('>I8', state, 24)
      if fence >= 2 ^ 31 or attempt >= 2 ^ 31 or due > 2 ^ 53 then error('a number of its state is out of its range') end
      state = struct.pack('>c1I4BI4', LEASED, fence + 1, flags, attempt + 1) .. sub(state, 11, 23) .. ends
        .. sub(state, 32, 47) .. worker
      states[2 * i] = state
      tell(answer, i, ids[i], state, due)
    elseif state then
      local read, why = state_of(state)
      if not read then error(why) end
      state = read
      if state.cold.n and state.cold.n ~= number_of(members[first + i - 1]) then error('its state is of another number') end
      if state.lane == LEASED then -- it ran out: that is a crash, not an attempt
        state.crashes = state.crashes + 1
        if has(state, ALONE) then state.alone = state.alone + 1 end
        mark(state, SUSPECT)
      elseif state.lane == READY then
        if state.attempt > 0 then again[#again + 1] = members[first + i - 1] end
        state.attempt = state.attempt + 1
      else
        error('it is due, though it rests')
      end
      unmark(state, ALONE)
      local due = state.due
      state.lane, state.fence, state.due, state.worker = LEASED, state.fence + 1, untl, worker
      states[2 * i] = write_state(state)
      tell(answer, i, ids[i], states[2 * i], due)
    else
      local marks = byte(messages[i], 20)
      if not marks then error('what was put is cut off') end
      if marks >= OWN then
        fresh[marks] = struct.pack(HEAD, LEASED, 1, flags_of(messages[i]) + COLD, 1, 0, 0, 0, 0, untl, 0, 0)
          .. cmsgpack.pack({w = worker, n = number_of(members[first + i - 1])})
      elseif not fresh[marks] then
        fresh[marks] = struct.pack(HEAD, LEASED, 1, flags_of(messages[i]), 1, 0, 0, 0, 0, untl, 0, 0) .. worker
      end
      states[2 * i] = fresh[marks]
    end
    states[2 * i - 1] = ids[i]
  end
  return states, again
end

-- Those of these members that can be leased; the others are set aside.
local function only_sound(ask, priority, members, first, last)
  local sound = {}
  for i = first, last do
    local member, id = members[i], sub(members[i], 7)
    local nothing = {rare = {}, fields = {}, count = 0}
    local whole, why = pcall(leased, {call('HGET', MESSAGES, id)}, {call('HGET', STATES, id)}, {id}, {member}, 1, ask.worker,
      now + ask.lease, nothing)
    if whole then
      sound[#sound + 1] = member
    else
      set_aside(member, ask.queue, priority, (string.gsub(tostring(why), '^user_script:%d+: ', '')))
    end
  end
  return sound
end

local lease
-- Lease these in the order given; how many were, and what to answer. See `ask_of`.
function lease(ask, priority, members, first, last, answer)
  local queue, untl, worker = ask.queue, now + ask.lease, ask.worker
  local score = text_of(untl)
  local n = last - first + 1
  local ids, leases = {}, {}
  for i = 1, n do ids[i] = sub(members[first + i - 1], 7) end
  local messages, packed = call('HMGET', MESSAGES, unpack(ids)), call('HMGET', STATES, unpack(ids))
  local rare, fields = #answer.rare, #answer.fields
  local whole, states, again = pcall(leased, messages, packed, ids, members, first, worker, untl, answer)
  if not whole then
    for i = rare + 1, #answer.rare do answer.rare[i] = nil end
    for i = fields + 1, #answer.fields do answer.fields[i] = nil end
    local sound = only_sound(ask, priority, members, first, last)
    if #sound == n then error(states) end
    if #sound > 0 then lease(ask, priority, sound, 1, #sound, answer) end
    return
  end
  for i = 1, n do leases[2 * i - 1], leases[2 * i] = score, members[first + i - 1] end
  spread(STATES)
  call('HSET', STATES, unpack(states))
  add_all(lease_key(priority, queue), leases)
  each('ZREM', retry_key(priority, queue), again)
  answer.count = answer.count + n
  local taken = answer.messages
  local at = #taken
  for i = 1, n do
    taken[at + i] = messages[i]
    answer.bytes = answer.bytes + #messages[i]
  end
  answer.members[#answer.members + 1] = table.concat(members, '', first, last)
end

-- Leases that ran out later are left to their holders.
local function lapsed_by(ask)
  return ask.lapsed_by and ask.lapsed_by < now and ask.lapsed_by or now
end

-- As `claim_front`, where leases ran out or tasks are skipped. The first that it did not look at, if there is one.
local function claim_chosen(ask, priority, limit, answer)
  local due, leases = due_key(priority, ask.queue), lease_key(priority, ask.queue)
  local firsts, beyond = first_of(due, leases, now, ask.skip, limit, ask.skip and SKIP_PAGE or limit, lapsed_by(ask))
  local members, waited = {}, {}
  for i, one in ipairs(firsts) do
    local _, member, is_leased = unpack(one, 1, 3)
    members[i] = member
    if not is_leased then waited[#waited + 1] = member end
  end
  each('ZREM', due, waited)
  for first = 1, #members, CLAIM_CHUNK do
    lease(ask, priority, members, first, math.min(first + CLAIM_CHUNK - 1, #members), answer)
  end
  return beyond
end

-- Of those that have failed before, the first `limit` that are due, in this priority; how many there were.
local function claim_retries(ask, priority, limit, answer)
  local due, retries = due_key(priority, ask.queue), retry_key(priority, ask.queue)
  local members
  for _ = 1, 3 do -- what it finds there and not among the due ones, it drops, and looks again
    local gone = {}
    members = {}
    for _, one in ipairs((first_of(retries, root .. '-', now, ask.skip, limit, ask.skip and SKIP_PAGE or limit))) do
      local _, member = unpack(one, 1, 2)
      local at = tonumber(call('ZSCORE', due, member) or nil)
      if at and at <= now then members[#members + 1] = member else gone[#gone + 1] = member end
    end
    each('ZREM', retries, gone)
    if #gone == 0 then break end
  end
  each('ZREM', due, members)
  for first = 1, #members, CLAIM_CHUNK do
    lease(ask, priority, members, first, math.min(first + CLAIM_CHUNK - 1, #members), answer)
  end
  return #members
end

-- The front of what is due, in this priority.
local function claim_front(ask, priority, limit, answer)
  local due, leases = due_key(priority, ask.queue), lease_key(priority, ask.queue)
  if ask.skip or #call('ZRANGEBYSCORE', leases, '-inf', lapsed_by(ask), 'LIMIT', 0, 1) > 0 then
    return claim_chosen(ask, priority, limit, answer)
  end
  local members = call('ZRANGEBYSCORE', due, '-inf', now, 'LIMIT', 0, limit)
  for first = 1, #members, CLAIM_CHUNK do
    if answer.bytes >= CLAIM_BYTES then return end
    local last = math.min(first + CLAIM_CHUNK - 1, #members)
    call('ZREMRANGEBYRANK', due, 0, last - first)
    lease(ask, priority, members, first, last, answer)
  end
end

-- Whether a message of this queue could be claimed now.
function has_due(queue)
  for priority = 0, 3 do
    if call('ZRANGEBYSCORE', due_key(priority, queue), '-inf', now, 'LIMIT', 0, 1)[1] then return true end
  end
  return false
end

-- An ask by the names of what was asked: `lease` is its length, `skip` has the tasks to skip, `retries` is how many places
-- go first to what has failed before, `lapsed_by` when leases must have run out by, if that is not now.
local function ask_of(row)
  return {queue = row[1], limit = row[2], lease = row[3], worker = row[4], skip = row[5], retries = row[6], lapsed_by = row[7]}
end

-- Appends to `answers` per ask and priority {position of the ask, priority, members, messages, rare, faults}, and to
-- `clogged` the position where it did not look far enough.
function claim(row, position, answers, clogged)
  local ask = ask_of(row)
  if ask.limit <= 0 then return end
  wake(ask.queue, ask.limit)
  if rules(ask.queue).paused then return end
  local left, length, retries, beyond = ask.limit, 0, ask.retries, nil
  for priority = 0, 3 do
    if left <= 0 or length >= CLAIM_BYTES then break end
    local answer = {members = {}, messages = {}, rare = {}, fields = {}, count = 0, bytes = length}
    if retries > 0 then retries = retries - claim_retries(ask, priority, math.min(left, retries), answer) end
    if left > answer.count then beyond = claim_front(ask, priority, left - answer.count, answer) or beyond end
    if answer.count > 0 then
      answers[#answers + 1] = {position, priority, table.concat(answer.members), answer.messages, answer.rare,
        each('HMGET', FAULTS, answer.fields)}
      left, length = left - answer.count, answer.bytes
    end
  end
  if beyond and left > 0 then clogged[#clogged + 1] = position end
end
end
