-- needs: states cells
-- {swaps}: {now, words}: 1 per swap that was written, else 0. Each stands for itself.
local words = {}
read_cells({asked}, 1)
for i, swap in ipairs(asked[1]) do words[i] = swap_cell(swap) and 1 or 0 end
write_cells()
flush()
return {now, words}
