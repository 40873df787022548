-- {key, cursor}: of a page of a large sorted set the members after ARGV[3] and, unless it is empty, before ARGV[4]:
-- {cursor of the next page, members}.
local PAGE = 5000
local function number_of(member, without) return #member < 6 and without or (struct.unpack('>I6', member)) end
local from, to = number_of(ARGV[3], 0), number_of(ARGV[4], TIME_MAX)
local cursor, rows = unpack(call('ZSCAN', asked[1], asked[2], 'COUNT', PAGE))
local members, unpack_number = {}, struct.unpack
for i = 1, #rows, 2 do
  local member = rows[i]
  if #member == 22 then
    local number = unpack_number('>I6', member)
    if number >= from and number <= to and comes_before(ARGV[3], member) and (ARGV[4] == '' or comes_before(member, ARGV[4])) then
      members[#members + 1] = member
    end
  end
end
return {cursor, members}
