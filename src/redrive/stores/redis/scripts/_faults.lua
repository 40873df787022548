-- Faults: each a field of its own, its message's id and a slot, so that a failure does not read those before it. Slots 0
-- to 9 keep the first ten; 10 to 19 the last ten in a ring, which a state's count of 20 to 29 says the oldest of.
local ENDS = 10 -- how many are kept at each end

-- The slot of the next fault, and the count with it.
local function next_slot(count)
  if count < 2 * ENDS then return count, count + 1 end
  local oldest = count - 2 * ENDS
  return ENDS + oldest, 2 * ENDS + (oldest + 1) % ENDS
end

-- (for scripts that need `states` too)
local function remember_fault(id, state, fault)
  local slot
  slot, state.faults = next_slot(state.faults)
  keep_field(FAULTS, id .. string.char(slot), fault)
  mark(state, HAS_FAULTS)
end

-- The fields of this many faults, oldest first.
local function fault_fields(id, count)
  local fields = {}
  for n = 0, math.min(count, 2 * ENDS) - 1 do
    local slot = n
    if n >= ENDS and count > 2 * ENDS then slot = ENDS + (n + count) % ENDS end
    fields[n + 1] = id .. string.char(slot)
  end
  return fields
end

-- The faults of a message in this state, each as JSON; or false.
local function faults_of(id, packed)
  local count = packed and byte(packed, 23) or 0
  return count > 0 and call('HMGET', FAULTS, unpack(fault_fields(id, count)))
end
