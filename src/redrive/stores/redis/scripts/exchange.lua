-- needs: full states faults cells groups puts settles looks claims
-- {acks, moves, zones of drafts, swaps, asks, retries}: settles all, then claims. Nothing is
-- written before all is known to apply.
-- acks: per priority and queue {priority, queue, ARGV index of members, of fences}, and for those that swap a cell each
-- {keys, versions, ARGV index of the first value, times to live}; retries: the same and {due times,
-- ARGV index of the first fault}; moves: see settle_move, with their members in ARGV[3] and fences in ARGV[4].
-- The answer: {now, {ack, number in it, …} that are stale, the same and the word of retries, words of moves, claims,
-- positions of asks that were clogged, ids of what was set aside}.
local acks, moves, zones, swaps, asks, retries = asked[1], asked[2], asked[3], asked[4], asked[5], asked[6]
local stale, other, words, drafts, draft_ids = {}, {}, {}, {}, {}
local acked, retried, moved, woken, damaged = {}, {}, {}, {}, {}

local function members_in(text)
  local members, ids = {}, {}
  for i = 1, #text / 22 do
    members[i] = sub(text, 22 * i - 21, 22 * i)
    ids[i] = sub(text, 22 * i - 15, 22 * i)
  end
  return members, ids
end

for at, ack in ipairs(acks) do
  local fences, n, plain, beside = ARGV[ack[4]], 0, {members = {}, ids = {}}, {}
  local members, ids = members_in(ARGV[ack[3]])
  local swap = ack[5]
  if swap then read_cells(swap[1]) end
  for i, packed in ipairs(each('HMGET', STATES, ids)) do
    local current = is_current(packed, sub(fences, 4 * i - 3, 4 * i), members[i])
    local flags = current and byte(packed, 6)
    if current and flags % (2 * GROUP) >= GROUP then -- its group will be read
      local state, why = state_of(packed)
      if not state then
        current = false
        damaged[#damaged + 1] = {members[i], ack[2], ack[1], why}
      end
    end
    if not current
      or (swap and not swap_cell(swap[1][i], swap[2][i], swap[3] + i - 1, swap[4][i])) then
      stale[#stale + 1] = at - 1
      stale[#stale + 1] = i - 1
    else
      n = n + 1
      plain.members[n], plain.ids[n] = members[i], ids[i]
      if flags % BESIDE ~= 0 then beside[#beside + 1] = {ids[i], members[i], packed} end
    end
  end
  acked[at] = {plain, beside}
end

for at, retry in ipairs(retries) do
  local members, ids = members_in(ARGV[retry[3]])
  local into = {states = {}, faults = {}, due = {}, members = {}, count = 0}
  for i, packed in ipairs(each('HMGET', STATES, ids)) do
    local word
    if not is_current(packed, sub(ARGV[retry[4]], 4 * i - 3, 4 * i), members[i]) then
      word = STALE
    elseif bit.band(byte(packed, 6), CANCEL + COLD) ~= 0 then
      local move = {RETRY, retry[2], retry[1], retry[5][i], true, false, nil, retry[6] + i - 1}
      local state, why = state_of(packed)
      if state then
        moved[#moved + 1] = {move, ids[i], members[i], packed}
        word = bit.band(byte(packed, 6), CANCEL) ~= 0 and CANCELLED
      else
        damaged[#damaged + 1] = {members[i], retry[2], retry[1], why}
        word = STALE
      end
    else
      plan_retry(retry, i, ids[i], members[i], packed, into)
    end
    if word then
      for _, part in ipairs({at - 1, i - 1, word}) do other[#other + 1] = part end
    end
  end
  retried[at] = into
end

local seen = {}
local packed_moves = #moves > 0 and each('HMGET', STATES, select(2, members_in(ARGV[3])))
local named = {}
for _, move in ipairs(moves) do
  for _, swap in ipairs(move[11] or {}) do named[#named + 1] = swap[1] end
end
read_cells(named)
for i, move in ipairs(moves) do
  local member = sub(ARGV[3], 22 * i - 21, 22 * i)
  local id = sub(member, 7)
  local packed = not seen[id] and packed_moves[i]
  local current, why = is_current(packed, sub(ARGV[4], 4 * i - 3, 4 * i), member), nil
  if current then current, why = state_of(packed) end
  if why then damaged[#damaged + 1] = {member, move[2], move[3], why} end
  if not current or not swap_together(move[11]) then
    words[i] = STALE
  else
    seen[id] = true
    moved[#moved + 1] = {move, id, member, packed}
    words[i] = bit.band(byte(packed, 6), CANCEL) ~= 0 and move[1] ~= ACK and CANCELLED or OK
    if words[i] == OK and move[12] then
      for _, draft in ipairs(move[12][1]) do drafts[#drafts + 1] = draft end
      draft_ids[#draft_ids + 1] = ARGV[move[12][2]]
    end
  end
end

local list, refused = {}, nil
if #drafts > 0 then
  for _, ack in ipairs(acked) do
    for _, id in ipairs(ack[1].ids) do settled_lanes[id] = GONE end
  end
  for _, one in ipairs(moved) do
    local move, id = one[1], one[2]
    local ended = bit.band(byte(one[4], 6), CANCEL) ~= 0
    settled_lanes[id] = move[1] == ACK and (move[4] and DONE or GONE) or ended and DONE
      or ({READY, DEAD, QUARANTINE})[move[1]]
  end
  -- A key that an ack frees is free for what follows it, in any order: its holder is gone.
  list, refused = plan_puts(drafts, zones, table.concat(draft_ids))
  if not list then return {'stored', refused} end
end
local conflict = swap_all(swaps)
if conflict then return {'conflict', conflict} end

for at, ack in ipairs(acks) do each('ZREM', lease_key(ack[1], ack[2]), acked[at][1].members) end
for at, retry in ipairs(retries) do each('ZREM', lease_key(retry[1], retry[2]), retried[at].members) end
for _, one in ipairs(moved) do drop(lease_key(one[1][3], one[1][2]), one[3]) end
flush()
for at, ack in ipairs(acks) do
  for _, one in ipairs(acked[at][2]) do
    local id, member, packed = one[1], one[2], one[3]
    forget(id, packed)
    if bit.band(byte(packed, 6), GROUP) ~= 0 then
      local state = read_state(packed)
      leave({member = member, queue = ack[2], group = state.cold.g, state = state})
    end
  end
  each('HDEL', STATES, acked[at][1].ids)
  each('HDEL', MESSAGES, acked[at][1].ids)
end
for at, retry in ipairs(retries) do
  local into = retried[at]
  if into.count > 0 then
    add_all(due_key(retry[1], retry[2]), into.due)
    add_all(retry_key(retry[1], retry[2]), into.due) -- a counted retry has an attempt behind it
    each('HSET', STATES, into.states)
    each('HSET', FAULTS, into.faults)
    woken[retry[2]] = true
  end
end
for _, one in ipairs(moved) do
  local move, id, member, packed = one[1], one[2], one[3], one[4]
  if move[1] == ACK and not move[4] and bit.band(byte(packed, 6), GROUP) ~= 0 then
    local state = read_state(packed)
    leave({member = member, queue = move[2], group = state.cold.g, state = state})
  end
  settle_move(move, id, member, packed)
  if move[1] == RETRY then woken[move[2]] = true end
end
write_cells()
flush()
write_puts(list)
admit()
finish_admitting()
for _, one in ipairs(damaged) do set_aside(one[1], one[2], one[3], one[4]) end
local answers, clogged = {}, {}
for position, ask in ipairs(asks) do claim(ask, position - 1, answers, clogged) end
for queue in pairs(admitted_to) do -- others may have room for those that were let in and are left
  if has_due(queue) then woken[queue] = true end
end
for queue in pairs(woken) do wake_waiters(queue) end
return {now, stale, other, words, answers, clogged, aside}
