-- {key, score}: of a page of a large sorted set, from its end, the members after ARGV[3] and, unless it is empty, before
-- ARGV[4]: {score of the last one read or '', that member, members}. The page begins before ARGV[5], which had this score.
-- Read by rank: ZSCAN would write each score as text, which takes longer than all else.
local PAGE = 5000
local function number_of(member, without) return #member < 6 and without or (struct.unpack('>I6', member)) end
local from, to = number_of(ARGV[3], 0), number_of(ARGV[4], TIME_MAX)
local key, score, at = asked[1], asked[2], 0
if ARGV[5] ~= '' then
  at = call('ZSCORE', key, ARGV[5]) == score and call('ZREVRANK', key, ARGV[5]) + 1 or call('ZCOUNT', key, '(' .. score, '+inf')
end
local rows = call('ZREVRANGE', key, at, at + PAGE - 1)
local members, unpack_number, last = {}, struct.unpack, rows[PAGE]
for i = 1, #rows do
  local member = rows[i]
  if #member == 22 then
    local number = unpack_number('>I6', member)
    if number >= from and number <= to and comes_before(ARGV[3], member) and (ARGV[4] == '' or comes_before(member, ARGV[4])) then
      members[#members + 1] = member
    end
  end
end
return {last and call('ZSCORE', key, last) or '', last or '', members}
