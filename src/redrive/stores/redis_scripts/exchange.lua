-- needs: full states cells groups puts settles claims
-- {acks, moves, zones of drafts, swaps, asks}: settles all, then claims. Nothing is written before all is known to apply.
-- acks: per priority and queue {priority, queue, ARGV index of members, of fences}; moves: see settle_move, with their
-- members in ARGV[3] and fences in ARGV[4].
local acks, moves, zones, swaps, asks = asked[1], asked[2], asked[3], asked[4], asked[5]
local stale, words, drafts, draft_ids = {}, {}, {}, {}
local acked, moved = {}, {}

for at, ack in ipairs(acks) do
  local members, fences, ids, good = ARGV[ack[3]], ARGV[ack[4]], {}, {}
  for i = 1, #members / 22 do ids[i] = sub(members, 22 * i - 15, 22 * i) end
  local states = each('HMGET', STATES, ids)
  for i, packed in ipairs(states) do
    if is_current(packed, sub(fences, 4 * i - 3, 4 * i)) then
      good[#good + 1] = i
    else
      stale[#stale + 1] = at - 1
      stale[#stale + 1] = i - 1
    end
  end
  acked[at] = {ids, states, good}
end

local seen = {}
for i, move in ipairs(moves) do
  local member = sub(ARGV[3], 22 * i - 21, 22 * i)
  local id = sub(member, 7)
  local packed = not seen[id] and call('HGET', STATES, id)
  if not is_current(packed, sub(ARGV[4], 4 * i - 3, 4 * i)) or not swap_together(move[11] or {}) then
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
    for _, i in ipairs(ack[3]) do settled_lanes[ack[1][i]] = GONE end
  end
  for _, one in ipairs(moved) do
    local move, id = one[1], one[2]
    local ended = bit.band(byte(one[4], 6), CANCEL) ~= 0
    settled_lanes[id] = move[1] == ACK and (move[4] and DONE or GONE) or ended and DONE
      or ({READY, DEAD, QUARANTINE})[move[1]]
  end
  -- A key that an ack frees is free for what follows it, whoever is looked at first: its holder is gone.
  list, refused = plan_puts(drafts, zones, table.concat(draft_ids))
  if not list then return {'stored', refused} end
end
local conflict = swap_all(swaps)
if conflict then return {'conflict', conflict} end

for at, ack in ipairs(acks) do
  local members, ids, states, good = ARGV[ack[3]], acked[at][1], acked[at][2], acked[at][3]
  local key = lease_key(ack[1], ack[2])
  for _, i in ipairs(good) do
    local id, packed = ids[i], states[i]
    local member = sub(members, 22 * i - 21, 22 * i)
    drop(key, member)
    if byte(packed, 6) % BESIDE == 0 then
      drop_field(MESSAGES, id)
      drop_field(STATES, id)
    end
  end
end
for _, one in ipairs(moved) do drop(lease_key(one[1][3], one[1][2]), one[3]) end
flush()
for at, ack in ipairs(acks) do
  for _, i in ipairs(acked[at][3]) do
    local id, packed = acked[at][1][i], acked[at][2][i]
    local flags = byte(packed, 6)
    if flags % BESIDE ~= 0 then
      forget(id, packed)
      if bit.band(flags, GROUP) ~= 0 then
        local state = read_state(packed)
        leave({member = sub(ARGV[ack[3]], 22 * i - 21, 22 * i), queue = ack[2], group = state.cold.g, state = state})
      end
    end
  end
end
local retried = {}
for _, one in ipairs(moved) do
  local move, id, member, packed = one[1], one[2], one[3], one[4]
  if move[1] == ACK and not move[4] and bit.band(byte(packed, 6), GROUP) ~= 0 then
    local state = read_state(packed)
    leave({member = member, queue = move[2], group = state.cold.g, state = state})
  end
  settle_move(move, id, member, packed)
  if move[1] == RETRY then retried[move[2]] = true end
end
write_cells()
flush()
write_puts(list)
admit()
finish_admitting()
local answers, claimed = {}, 0
for position, ask in ipairs(asks) do claimed = claimed + claim(ask, position - 1, answers) end
if admitted > claimed then -- others may have room for them
  for queue in pairs(admitted_to) do retried[queue] = true end
end
for queue in pairs(retried) do wake_waiters(queue) end
return {now, stale, words, answers}
