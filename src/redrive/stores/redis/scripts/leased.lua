-- {queues}: {place of a queue among them, priority, …} of those sets of leases in which there are some.
local places = {}
for i, queue in ipairs(asked[1]) do
  for priority = 0, 3 do
    if call('EXISTS', lease_key(priority, queue)) == 1 then
      places[#places + 1] = i - 1
      places[#places + 1] = priority
    end
  end
end
return places
