-- {lanes and queues as pairs, since, until, limit}: the first messages at rest after the place `since` and ARGV[3] (its
-- member), as {rested, member, …}, in the order of rest.
local found, limit = {}, asked[4]
local function take(key)
  local offset, taken = 0, 0
  while taken < limit do
    local rows = call('ZRANGEBYSCORE', key, asked[2], asked[3], 'WITHSCORES', 'LIMIT', offset, limit)
    for i = 1, #rows, 2 do
      local at_ms = tonumber(rows[i + 1])
      if at_ms > asked[2] or rows[i] > ARGV[3] then
        found[#found + 1] = {at_ms, rows[i]}
        taken = taken + 1
      end
    end
    if #rows < 2 * limit then return end
    offset = offset + limit
  end
end
for _, place in ipairs(asked[1]) do take(rest_key(place[1], place[2])) end
table.sort(found, function(a, b)
  if a[1] ~= b[1] then return a[1] < b[1] end
  return a[2] < b[2]
end)
local answer = {}
for i = 1, math.min(limit, #found) do
  answer[2 * i - 1], answer[2 * i] = found[i][1], found[i][2]
end
return answer
