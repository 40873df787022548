-- needs: full states
-- {lease, alone, zones, zone of each}, members in ARGV[3], fences in ARGV[4]: 0 held, 1 lost, 2 held and to be cancelled.
local lease, alone, zones, zone_of = unpack(asked, 1, 4)
local untl, words, ids = math.min(now + lease, TIME_MAX), {}, {}
for i = 1, #ARGV[3] / 22 do ids[i] = sub(ARGV[3], 22 * i - 15, 22 * i) end
for i, packed in ipairs(each('HMGET', STATES, ids)) do
  local member = sub(ARGV[3], 22 * i - 21, 22 * i)
  local state = is_current(packed, sub(ARGV[4], 4 * i - 3, 4 * i), member) and state_of(packed)
  if state then
    local priority, queue = unpack(zones[zone_of[i] + 1])
    state.due = untl
    if alone then
      mark(state, ALONE)
      mark(state, SUSPECT)
    end
    add(lease_key(priority, queue), untl, member)
    keep_state(ids[i], state)
    words[i] = has(state, CANCEL) and 2 or 0
  else
    words[i] = 1
  end
end
flush()
return words
