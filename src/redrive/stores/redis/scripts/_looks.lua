-- Looking through what is due and what is leased of one queue and priority, as one line in the order of their times.
local SKIP_PAGE = 100 -- so many together, where tasks are skipped
local first_of
do
local SKIP_LOOKED = 1000 -- how many in all (message.SKIP_LOOKED)
local SKIP_BYTES = 4 * 1024 * 1024 -- or fewer, once their bodies are longer together

-- The next of a sorted set up to a score, each as {score, member, whether it is leased}; read by pages.
local function reader(key, last, page, leased)
  local offset, rows, at, ended = 0, {}, 1, false
  return function(taken)
    if taken then at = at + 2 end
    if at > #rows then
      if ended then return nil end
      rows, at = call('ZRANGEBYSCORE', key, '-inf', last, 'WITHSCORES', 'LIMIT', offset, page), 1
      offset, ended = offset + page, #rows < 2 * page
      if #rows == 0 then return nil end
    end
    return tonumber(rows[at + 1]), rows[at], leased
  end
end

-- Up to `many` more of the two, merged.
local function merged(one, other, many)
  local both = {}
  local score, member = one()
  local later, lease = other()
  while #both < many and (score or later) do
    if score and (not later or score < later or (score == later and comes_before(member, lease))) then
      both[#both + 1] = {score, member}
      score, member = one(true)
    else
      both[#both + 1] = {later, lease, true}
      later, lease = other(true)
    end
  end
  return both
end

-- The first `limit` of both sets up to `last`, as {score, member, whether it is leased} each, none of a task in `skip`;
-- and when the first of those is due that were not looked at, if tasks are skipped and there is one. Of what is leased up
-- to `lapsed`, if that is given.
function first_of(due, leases, last, skip, limit, page, lapsed)
  local one, other = reader(due, last, page), reader(leases, lapsed or last, page)
  if not skip then return merged(one, other, limit) end
  local firsts, looked, bytes = {}, 0, 0
  while #firsts < limit do
    local some = merged(one, other, math.min(page, SKIP_LOOKED - looked))
    if #some == 0 then break end
    local ids = {}
    for i, each_one in ipairs(some) do ids[i] = sub(each_one[2], 7) end
    for i, message in ipairs(each('HMGET', MESSAGES, ids)) do
      bytes = bytes + (message and #message or 0)
      if #firsts < limit and not (message and skip[task_of(message)]) then firsts[#firsts + 1] = some[i] end
    end
    looked = looked + #some
    if looked >= SKIP_LOOKED or bytes >= SKIP_BYTES then break end
  end
  return firsts, #firsts < limit and (merged(one, other, 1)[1] or {})[1]
end
end
