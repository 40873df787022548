-- needs: states
-- {cursor}: a page of all batches: {cursor that leads on, {batch, its counts as they are stored, …}}.
return call('HSCAN', batches.COUNTS, asked[1], 'COUNT', 500)
