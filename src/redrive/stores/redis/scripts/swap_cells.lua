-- needs: states cells
-- {swaps}: {now, words}: 1 per swap that was written, else 0. Each stands for itself.
local words, keys = {}, {}
for i, swap in ipairs(asked[1]) do keys[i] = swap[1] end
read_cells(keys)
for i, swap in ipairs(asked[1]) do words[i] = swap_cell(unpack(swap, 1, 4)) and 1 or 0 end
write_cells()
return {now, words}
