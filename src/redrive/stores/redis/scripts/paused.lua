-- needs: states
-- The names of the queues that are paused.
local rows, paused = call('HGETALL', SETTINGS), {}
for i = 1, #rows, 2 do
  if settings_of(rows[i + 1]).paused then paused[#paused + 1] = rows[i] end
end
return paused
