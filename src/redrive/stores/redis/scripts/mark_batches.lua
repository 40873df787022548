-- needs: full states
-- {batch, counts, how long to keep them or nil}, …: who has these counts needs no look until it changes.
for _, mark in ipairs(asked) do
  local batch, said, keep = unpack(mark, 1, 3)
  local packed = call('HGET', batches.COUNTS, batch)
  local counts, same = batches.read(packed), packed
  for at, count in ipairs(said) do same = same and counts[at] == count end
  if same then
    call('ZREM', batches.CHANGED, batch)
    counts[10] = keep and math.min(now + keep, TIME_MAX) or 0
    if keep then call('ZADD', batches.EXPIRIES, counts[10], batch) end
    call('HSET', batches.COUNTS, batch, cmsgpack.pack(counts))
  end
end
return 1
