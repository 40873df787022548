-- needs: states
-- {lanes and queues as pairs, since, until, limit, how many to look at, wanted or nil}: the first messages at rest after the place `since` and
-- ARGV[3] (its member), as {{rested, member, …}, …}, in the order of rest. Where the lane is '', the queue is a failure
-- group's name. `wanted`: {reasons, fingerprints, tasks, redrives, run}, each but those two a map, or nil. Of each it takes
-- twice its share, and looks at so many only; if that was not the end, it says up to which place it did: {…, rested, member}.
local LOOKED_EACH, PAGE_MOST = 50, 2000
local sets, since, untl, limit, looks, wanted = unpack(asked, 1, 6)
local reasons, fingerprints, tasks, redrives, run = unpack(wanted or {}, 1, 5)
local at_most = math.max(LOOKED_EACH, math.floor(looks / #sets))
local share = math.min(limit, math.max(20, math.ceil(2 * limit / #sets)))
local places, last_at, last_member = {}, nil, nil

-- Whether one of these words, if few are asked for, stands anywhere in what a state rarely holds: most that do not fit
-- need not be read.
local function mentions(packed, words)
  local tried = 0
  for word in pairs(words) do
    if tried == 5 or string.find(packed, word, TAIL, true) then return true end
    tried = tried + 1
  end
  return false
end

local function fits(packed)
  if not packed then return false end
  if reasons and not mentions(packed, reasons) then return false end
  if fingerprints and not mentions(packed, fingerprints) then return false end
  if tasks and byte(packed, 1) == 68 and not mentions(packed, tasks) then return false end -- 68: D
  local state = state_of(packed)
  if not state then return false end
  local cold = state.cold
  local fingerprint, task = string.match(cold.fk or '', '^(%Z*)%z(.*)$')
  return (not reasons or reasons[cold.r or false]) and (not fingerprints or fingerprints[cold.fp or false])
    and (not tasks or not task or tasks[task]) and (not redrives or redrives == state.redrives)
    and (not run or run == cold.run)
end

local function chosen(some)
  if not wanted then return some end
  local ids, fit = {}, {}
  for i, place in ipairs(some) do ids[i] = sub(place[2], 7) end
  for i, packed in ipairs(each('HMGET', STATES, ids)) do
    if fits(packed) then fit[#fit + 1] = some[i] end
  end
  return fit
end

local function stop_at(at_ms, member)
  if not last_at or at_ms < last_at or (at_ms == last_at and comes_before(member, last_member)) then
    last_at, last_member = at_ms, member
  end
end

local function take(key)
  local offset, taken, page = 0, 0, share
  while true do
    local rows = call('ZRANGEBYSCORE', key, since, untl, 'WITHSCORES', 'LIMIT', offset, page)
    local some = {}
    for i = 1, #rows, 2 do
      local at_ms = math.floor(tonumber(rows[i + 1])) -- as an answer has it
      if is_member(rows[i]) and (at_ms > since or comes_before(ARGV[3], rows[i])) then some[#some + 1] = {at_ms, rows[i]} end
    end
    for _, place in ipairs(chosen(some)) do
      places[#places + 1] = place
      taken = taken + 1
    end
    if #rows < 2 * page then return end
    offset, page = offset + page, math.min(2 * page, PAGE_MOST)
    if #some > 0 and (taken >= share or offset >= at_most) then return stop_at(some[#some][1], some[#some][2]) end
  end
end

for _, set in ipairs(sets) do
  local lane, queue = unpack(set)
  take(lane == '' and root .. 'f:' .. queue or rest_key(lane, queue))
end
table.sort(places, function(a, b)
  if a[1] ~= b[1] then return a[1] < b[1] end
  return comes_before(a[2], b[2])
end)
local answer = {}
for i = 1, math.min(limit, #places) do
  answer[2 * i - 1], answer[2 * i] = places[i][1], places[i][2]
end
return {answer, last_at, last_member}
