-- Every statement of stores/sqlite/, by the name it is called with there. `-- name:` starts one.
--
-- Words in braces are spelled out by schema.py. What lies between `-- each priority` and `-- end` is there once for each of them, all of
-- them joined by `union all`. A statement with two names is two: {ours} of the second leaves alone lanes of newer versions.
-- What is no word is looked at, and set aside.
-- Batches travel as one JSON argument and come back as one JSON value. sqlite3 gives up the interpreter lock at every step of a
-- statement, and beside a busy event loop it waits up to 5 ms to get it back: a batch must be a few steps, not one per message.

-- name: migration_5
create table message (
  seq integer primary key autoincrement,  -- the receipt's handle, so never used twice; puts of one commit keep their order by it
  id text not null,
  task text not null,
  queue text not null,
  lane text not null default 'ready',
  priority integer not null default 2,
  due_ms integer,                         -- null while resting: only what can be claimed stands in message_due
  fence integer not null default 0,
  attempt integer not null default 0,
  crashes integer not null default 0,
  crashes_alone integer not null default 0,
  redrives integer not null default 0,
  suspect integer not null default 0,     -- 1: its last run was cut off; 2: and it runs alone now
  cancel integer not null default 0,
  enqueued_ms integer not null,
  life_ms integer not null,
  held_ms integer not null default 0,
  deadline_ms integer,
  attempts_allowed integer,
  version integer not null default 1,
  key text,
  grp text,
  run text,
  worker text,
  producer text,
  reason text,
  rested_ms integer,
  fingerprint text,                       -- of the last fault, set when it comes to rest
  error text,
  meta text,                              -- JSON: what rarely differs from its default (headers, correlation, content, …)
  faults text,                            -- JSON: fault history, oldest first
  body blob not null,
  progress blob,
  result blob,
  turn integer,                           -- of a grouped message: null out of line, 0 with a place, above that parked in this order
  wake_ms integer,                        -- of a grouped message without a place: when it may be due
  parked_ms integer,                      -- of a parked message: since when; its group holds it from then on
  expires_ms integer,                     -- of a done message: when it is removed
  deferral text,                          -- JSON: why flow control holds it back
  -- what a redrive by a run, or an isolation, took from it: JSON, and of a done one its checkpoint and result
  before text,
  before_progress blob,
  before_result blob
);
-- lane stands last so that counts read this index alone
create index message_due on message(queue, priority, due_ms, lane) where due_ms is not null;
create unique index message_id on message(id);
create index message_group on message(queue, grp, turn) where turn is not null;
create index message_wake on message(queue, wake_ms) where wake_ms is not null and turn is null;
create index message_expires on message(expires_ms) where expires_ms is not null;
-- Pages of what rests, by each field that a filter names. Each begins with a column that changes only where a message comes to rest, or
-- leaves: claims and acks do not touch them.
create index message_rest on message(lane, rested_ms) where rested_ms is not null;
create index message_rest_queue on message(queue, lane, rested_ms) where rested_ms is not null;
create index message_rest_fingerprint on message(fingerprint, lane, rested_ms) where fingerprint is not null;
create index message_rest_task on message(task, lane, rested_ms) where rested_ms is not null;
create index message_rest_error on message(error, lane, rested_ms) where error is not null;
create index message_rest_reason on message(reason, lane, rested_ms) where reason is not null;
create index message_rest_group on message(lane, fingerprint, task, rested_ms) where rested_ms is not null;
create table unique_key (
  task text not null,
  key text not null,
  id text not null,
  until_ms integer not null,              -- 0, or held at least until then, also after the message is gone
  primary key (task, key)
) without rowid;
create index unique_key_until on unique_key(until_ms) where until_ms > 0;
create trigger message_gone after delete on message when old.key is not null begin
  delete from unique_key where task = old.task and key = old.key and id = old.id and until_ms = 0;
end;
create table queue (
  name text primary key,
  paused integer not null default 0,
  group_width integer,
  group_order text,
  on_dead text
) without rowid;
create table group_width (
  queue text not null,
  name text not null,                     -- of the group; empty: of every group of the queue
  width integer not null,
  primary key (queue, name)
) without rowid;
create table cell (
  key text primary key,
  version integer not null,
  value blob,                             -- null: deleted, which is an expired one
  expires_ms integer
) without rowid;
create index cell_expires on cell(expires_ms) where expires_ms is not null;
create table cell_gone (version integer not null);  -- the highest of those that went, so that none is used twice
insert into cell_gone values (0);

-- name: migration_6
-- older programs go on beside it
-- Those that have failed before and may be claimed: a claim gives some of its places to them first.
create index if not exists message_again on message(queue, priority, due_ms) where lane = 'ready' and attempt > 0 and due_ms is not null;

-- name: migration_7
alter table message add column batch text;
create index message_rest_batch on message(batch, lane, rested_ms) where rested_ms is not null and batch is not null;
create table batch (
  id text primary key,
  open integer not null,                  -- its members, each counted once, in the commit that moves it
  done integer not null,
  dead integer not null,
  quarantine integer not null,
  cancelled integer not null,
  discarded integer not null,
  duplicate integer not null,
  opened integer not null,                -- how often one became open, and how often an open one died: these only grow
  died integer not null,
  changed integer not null default 1,     -- 1: it changed since it was marked
  expires_ms integer                      -- when the row is removed, if the batch does not change before
) without rowid;
create index batch_news on batch(id) where changed and (open = 0 or dead + quarantine > 0);
create index batch_failed on batch(id) where dead + quarantine > 0;
create index batch_expires on batch(expires_ms) where expires_ms is not null;

-- name: put
-- '' is null for group, meta and batch: sqlite3 binds an empty text in a quarter of the time that None takes.
insert into message(id, task, queue, priority, due_ms, enqueued_ms, life_ms, deadline_ms, version, key, grp, producer, meta, batch, body)
values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, nullif(?, ''), ?, nullif(?, ''), nullif(?, ''), ?)

-- name: put_grouped
insert into message(id, task, queue, priority, due_ms, enqueued_ms, life_ms, deadline_ms, version, key, grp, producer, meta, batch, body, turn,
  wake_ms, parked_ms)
values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, nullif(?, ''), ?, nullif(?, ''), nullif(?, ''), ?, ?, ?, ?)

-- name: replace_waiting
-- As `put`, for one that waits with the key: it starts over with what was put, under its id and its place in the order.
update message set priority = ?4, due_ms = ?5, life_ms = ?7, deadline_ms = ?8, version = ?9, producer = ?12, meta = nullif(?13, ''),
  body = ?15, attempt = 0, crashes = 0, crashes_alone = 0, suspect = 0, cancel = 0, held_ms = 0, attempts_allowed = null, run = null, worker = null, faults = null,
  progress = null, deferral = null, before = null, before_progress = null, before_result = null
where id = ?1 and task = ?2 and queue = ?3 and key = ?10 and lane = 'ready' and grp is null and batch is null and redrives = 0

-- name: key_holder
select k.id, k.until_ms, m.lane, m.due_ms, m.reason
from unique_key k left join message m on m.id = k.id and m.task = k.task and m.key = k.key
where k.task = ? and k.key = ?

-- name: hold_key
insert into unique_key(task, key, id, until_ms) values (?, ?, ?, ?)
on conflict(task, key) do update set id = excluded.id, until_ms = excluded.until_ms

-- name: claimable, claimable_by_lane
-- ?1 queue, ?2 now, ?3 limit. Ordered just as the index is: else it would sort all that is due.
-- Finds the seqs in the index alone, then looks up just those rows.
select json_group_array(json_array({columns})) from (select seq as place from (
  -- each priority
  select * from (select seq from message where queue = ?1 and priority = {priority} and due_ms <= ?2{ours} order by due_ms, lane, seq limit ?3)
  -- end
  ) limit ?3) cross join message on seq = place
where not exists (select 1 from queue where name = ?1 and paused)

-- name: claimable_but, claimable_but_by_lane
-- ?1 ?2 ?3 as `claimable`, ?4 tasks to skip (JSON). Looks up no more rows than it may look at.
select json_group_array(json_array({columns})) from (select seq as place from (
  -- each priority
  select * from (select seq from (select seq, task from message where queue = ?1 and priority = {priority} and due_ms <= ?2{ours}
    order by due_ms, lane, seq limit {skip_looked}) where task not in (select value from json_each(?4)) limit ?3)
  -- end
  ) limit ?3) cross join message on seq = place
where not exists (select 1 from queue where name = ?1 and paused)

-- name: retries_due
-- ?1 queue, ?2 now, ?3 limit of each priority: [[priority, seq], …] of those that have failed before, by due time, read from the index alone
select json_group_array(json_array(priority, seq)) from (
  -- each priority
  select * from (select priority, seq from message where queue = ?1 and priority = {priority} and due_ms <= ?2
    and lane = 'ready' and attempt > 0 order by due_ms, seq limit ?3)
  -- end
  )
where not exists (select 1 from queue where name = ?1 and paused)

-- name: retries_due_but
-- ?1 ?2 ?3 as `retries_due`, ?4 tasks to skip (JSON)
select json_group_array(json_array(priority, seq)) from (
  -- each priority
  select * from (select priority, seq from (select priority, seq, task from message where queue = ?1 and priority = {priority} and due_ms <= ?2
    and lane = 'ready' and attempt > 0 order by due_ms, seq limit {skip_looked}) where task not in (select value from json_each(?4)) limit ?3)
  -- end
  )
where not exists (select 1 from queue where name = ?1 and paused)

-- name: due, due_by_lane
-- ?1 ?2 ?3 as `claimable`: [[priority, seq], …]
select json_group_array(json_array(priority, seq)) from (
  -- each priority
  select * from (select priority, seq from message where queue = ?1 and priority = {priority} and due_ms <= ?2{ours} order by due_ms, lane, seq limit ?3)
  -- end
  limit ?3)

-- name: due_but, due_but_by_lane
-- ?1 ?2 ?3 ?4 as `claimable_but`: [[priority, seq], …]
select json_group_array(json_array(priority, seq)) from (
  -- each priority
  select * from (select priority, seq from (select priority, seq, task from message where queue = ?1 and priority = {priority} and due_ms <= ?2{ours}
    order by due_ms, lane, seq limit {skip_looked}) where task not in (select value from json_each(?4)) limit ?3)
  -- end
  limit ?3)

-- name: chosen
-- ?1 seqs (JSON), in their order
select json_group_array(json_array({columns})) from (select value place from json_each(?1)) cross join message on seq = place

-- name: unclaimable
-- ?1 queue: those that stand in the index of what is due, where no claim looks: of another priority, or due at what is no number
select seq from message where queue = ?1 and priority < 0 and due_ms is not null
union all select seq from message where queue = ?1 and priority > 0 and priority < 1 and due_ms is not null
union all select seq from message where queue = ?1 and priority > 1 and priority < 2 and due_ms is not null
union all select seq from message where queue = ?1 and priority > 2 and priority < 3 and due_ms is not null
union all select seq from message where queue = ?1 and priority > 3 and due_ms is not null
union all select seq from message where queue = ?1 and priority = 0 and due_ms >= ''
union all select seq from message where queue = ?1 and priority = 1 and due_ms >= ''
union all select seq from message where queue = ?1 and priority = 2 and due_ms >= ''
union all select seq from message where queue = ?1 and priority = 3 and due_ms >= ''
limit 100

-- name: clogged
-- ?1 queue, ?2 now: whether more is due in some priority than a claim that skips looks at
select not exists (select 1 from queue where name = ?1 and paused) and (0
  or exists (select 1 from message where queue = ?1 and priority = 0 and due_ms <= ?2 order by due_ms, lane, seq limit 1 offset {skip_looked})
  or exists (select 1 from message where queue = ?1 and priority = 1 and due_ms <= ?2 order by due_ms, lane, seq limit 1 offset {skip_looked})
  or exists (select 1 from message where queue = ?1 and priority = 2 and due_ms <= ?2 order by due_ms, lane, seq limit 1 offset {skip_looked})
  or exists (select 1 from message where queue = ?1 and priority = 3 and due_ms <= ?2 order by due_ms, lane, seq limit 1 offset {skip_looked}))

-- name: claim
-- ?1 lease end, ?2 worker, ?3 seqs (JSON). What was still leased had run out: that is a crash, not an attempt.
update message set
  due_ms = ?1, worker = ?2, fence = fence + 1,
  attempt = attempt + (lane = 'ready'), crashes = crashes + (lane = 'leased'), lane = 'leased'
where seq in (select value from json_each(?3))

-- name: claim_lapsed
-- ?1 seqs (JSON): beside `claim`, for those whose lease ran out
update message set crashes_alone = crashes_alone + (suspect = 2), suspect = 1
where seq in (select value from json_each(?1))

-- name: next_due, next_due_by_lane
-- ?1 queue
select min(due_ms) from (
  -- each priority
  select * from (select due_ms from message where queue = ?1 and priority = {priority} and due_ms is not null{ours} order by due_ms limit 1)
  -- end
  union all
  select * from (select wake_ms from message where queue = ?1 and wake_ms is not null and turn is null order by wake_ms limit 1))
where not exists (select 1 from queue where name = ?1 and paused)

-- name: next_due_but, next_due_but_by_lane
-- ?1 queue, ?2 tasks to skip (JSON): of those that a claim would look at, or of the first one beyond
select min(due_ms) from (
  -- each priority
  select * from (select due_ms from (select due_ms, task from message where queue = ?1 and priority = {priority} and due_ms is not null{ours}
    order by due_ms, lane, seq limit {skip_looked}) where task not in (select value from json_each(?2)) limit 1)
  union all
  select * from (select due_ms from message where queue = ?1 and priority = {priority} and due_ms is not null{ours}
    order by due_ms, lane, seq limit 1 offset {skip_looked})
  -- end
  union all
  select * from (select wake_ms from message where queue = ?1 and wake_ms is not null and turn is null order by wake_ms limit 1))
where not exists (select 1 from queue where name = ?1 and paused)

-- name: held_count
-- ?1 {seq: fence}
select count(*) from json_each(?1) j cross join message m on m.seq = cast(j.key as integer)
where m.lane = 'leased' and m.fence = j.value

-- name: held_members
-- ?1 {seq: fence}: as `held_count`, but of each batch and of what has none, as [[batch, count], …]
select json_group_array(json_array(batch, held)) from (
  select m.batch, count(*) held from json_each(?1) j cross join message m on m.seq = cast(j.key as integer)
  where m.lane = 'leased' and m.fence = j.value group by m.batch)

-- name: ack
-- ?1 seqs (JSON) of current claims
delete from message where seq in (select cast(value as integer) from json_each(?1))

-- name: keep
-- ?1 now, ?2 expires or null, ?3 reason, ?4 result, ?5 seq, ?6 fence: an ack of what is kept
update message set lane = 'done', due_ms = null, turn = null, rested_ms = ?1, expires_ms = ?2, reason = ?3, result = ?4, deferral = null
where seq = ?5 and fence = ?6 and lane = 'leased'

-- name: settle
-- ?1 now, ?2 [[seq, fence, lane, due, counts, held, reason, fingerprint, error, fault, deferral, crashed, alone], …]; a cancelled message is done, whatever was decided
update message set
  lane = case when cancel then 'done' else json_extract(j.value, '$[2]') end,
  due_ms = case when cancel then null else json_extract(j.value, '$[3]') end,
  attempt = attempt - not json_extract(j.value, '$[4]'),
  crashes = crashes + json_extract(j.value, '$[11]'),
  crashes_alone = crashes_alone + json_extract(j.value, '$[12]'),
  suspect = iif(json_extract(j.value, '$[4]'), 0, max(min(suspect, 1), json_extract(j.value, '$[11]'))),
  deferral = iif(cancel, null, json_extract(j.value, '$[10]')),
  held_ms = held_ms + json_extract(j.value, '$[5]'),
  reason = case when cancel then 'cancelled' else json_extract(j.value, '$[6]') end,
  rested_ms = case when cancel or json_extract(j.value, '$[3]') is null then ?1 end,
  expires_ms = case when cancel then ?1 + 86400000 end,
  fingerprint = json_extract(j.value, '$[7]'),
  error = json_extract(j.value, '$[8]'),
  faults = case
    when json_extract(j.value, '$[9]') is null then faults
    when faults is null then '[' || json_extract(j.value, '$[9]') || ']'
    when json_array_length(faults) >= 20 then
      json_insert(json_remove(faults, '$[10]'), '$[#]', json(json_extract(j.value, '$[9]')))
    else substr(faults, 1, length(faults) - 1) || ',' || json_extract(j.value, '$[9]') || ']' end
from json_each(?2) j
where message.seq = json_extract(j.value, '$[0]') and message.lane = 'leased' and message.fence = json_extract(j.value, '$[1]')

-- name: retry
-- ?1 [[seq, fence, due, fault], …]: `settle` for the most frequent of its cases, a counted retry without cancel
update message set lane = 'ready', suspect = 0, deferral = null, due_ms = json_extract(j.value, '$[2]'), faults = case
    when faults is null then '[' || json_extract(j.value, '$[3]') || ']'
    when json_array_length(faults) >= 20 then
      json_insert(json_remove(faults, '$[10]'), '$[#]', json(json_extract(j.value, '$[3]')))
    else substr(faults, 1, length(faults) - 1) || ',' || json_extract(j.value, '$[3]') || ']' end
from json_each(?1) j
where message.seq = json_extract(j.value, '$[0]') and message.lane = 'leased' and message.fence = json_extract(j.value, '$[1]')

-- name: defer
-- ?1 [[seq, due, held, deferral], …]: `settle` for what flow control holds back, of claims that are held as just checked
update message set lane = 'ready', attempt = attempt - 1, suspect = min(suspect, 1), due_ms = json_extract(j.value, '$[1]'),
  held_ms = held_ms + json_extract(j.value, '$[2]'), deferral = json_extract(j.value, '$[3]')
from json_each(?1) j where message.seq = json_extract(j.value, '$[0]')

-- name: held_now
-- of ?1 {seq: fence}: those that are the current claim, whether a cancel was asked for, and the batch
select json_group_array(json_array(m.seq, m.fence, m.cancel, m.batch)) from json_each(?1) j
cross join message m on m.seq = cast(j.key as integer)
where m.lane = 'leased' and m.fence = j.value

-- name: extend
-- ?1 lease end, ?2 seqs (JSON)
update message set due_ms = ?1 where seq in (select value from json_each(?2))

-- name: run_alone
-- ?1 seqs (JSON)
update message set suspect = 2 where seq in (select value from json_each(?1))

-- name: lapse
-- ?1 now, ?2 worker: all its leases end now. They have no owner from then on: a worker of that name that is killed
-- before it claimed them must not find them among what it had claimed and not started. They go before what was enqueued after them.
update message set due_ms = min(?1, life_ms), worker = null where due_ms is not null and lane = 'leased' and worker = ?2

-- name: lapse_with
-- ?1 ?2 as `lapse`, ?3 the fault that is kept with each
update message set due_ms = min(?1, life_ms), worker = null, faults = case
    when faults is null then '[' || ?3 || ']'
    when json_array_length(faults) >= 20 then json_insert(json_remove(faults, '$[10]'), '$[#]', json(?3))
    else substr(faults, 1, length(faults) - 1) || ',' || ?3 || ']' end
where due_ms is not null and lane = 'leased' and worker = ?2

-- name: give_back
-- ?1 now, ?2 worker, ?3 [[id, fence], …] that stay leased: the others were never started
update message set lane = 'ready', due_ms = min(?1, life_ms), attempt = attempt - 1, suspect = min(suspect, 1)
where due_ms is not null and lane = 'leased' and worker = ?2
and (id, fence) not in (select json_extract(value, '$[0]'), json_extract(value, '$[1]') from json_each(?3))

-- name: checkpoint
update message set progress = ?3 where seq = ?1 and fence = ?2 and lane = 'leased'

-- name: cancel
-- ?1 now, ?2 ids (JSON)
update message set lane = 'done', due_ms = null, turn = null, wake_ms = null, reason = 'cancelled', rested_ms = ?1, deferral = null,
  expires_ms = ?1 + 86400000
where id in (select value from json_each(?2)) and lane = 'ready'

-- name: request_cancel
update message set cancel = 1 where id in (select value from json_each(?1)) and lane = 'leased'

-- name: as_seen
-- ?1 [[id, redrives, lane, fence or null, due or null, [queue or null, priority or null, deadline, 0 or null] or null], …], ?2 whether also
-- what was set aside as damaged, ?3 what was cancelled: those that are still so, as [[which, seq, lane, queue, group, priority, turn, batch], …]
select json_group_array(json_array(j.key, m.seq, m.lane, m.queue, m.grp, m.priority, m.turn, m.batch)) from json_each(?1) j
cross join message m on m.id = json_extract(j.value, '$[0]')
where m.redrives = json_extract(j.value, '$[1]') and m.lane = json_extract(j.value, '$[2]') and (?3 or m.lane <> 'done' or m.reason is not 'cancelled')
and m.fence = coalesce(json_extract(j.value, '$[3]'), m.fence)
and (json_extract(j.value, '$[4]') is null or coalesce(m.due_ms, m.wake_ms) = json_extract(j.value, '$[4]'))
and (json_extract(j.value, '$[5]') is null or m.queue = coalesce(json_extract(j.value, '$[5][0]'), m.queue)
  and m.priority = coalesce(json_extract(j.value, '$[5][1]'), m.priority)
  and coalesce(m.deadline_ms, 0) = coalesce(json_extract(j.value, '$[5][2]'), m.deadline_ms, 0))
and (?2 or m.lane <> 'quarantine' or m.reason is not 'damaged')

-- name: kept_before
-- ?1 seqs (JSON): what rows were that were set aside
select seq, before from message where seq in (select value from json_each(?1)) and lane = 'quarantine' and before is not null

-- name: set_aside_among
-- ?1 ?2 first and last seq
select seq, before from message where seq between ?1 and ?2 and lane = 'quarantine' and reason = 'damaged' and before is not null

-- name: stranded_among
-- ?1 ?2 first and last seq: those that wait or run, and that nothing would ever claim
select seq from message where seq between ?1 and ?2 and lane in ('ready', 'leased') and due_ms is null and turn is null and wake_ms is null

-- name: can_return
-- ?1 seqs (JSON) of ready ones, ?2 run: those that it moved and that were not run since
select json_group_array(seq) from message where seq in (select value from json_each(?1)) and run = ?2 and attempt = 0 and crashes = 0
and json_extract(before, '$.redrives') = redrives - 1

-- name: redrive
-- ?1 now, ?2 [[seq, due], …], ?3 queue or null, ?4 attempts or null, ?5 run, ?6 keep deadline
update message set
  before = case when ?5 is not null then {before} end,
  before_progress = case when ?5 is not null and lane = 'done' then progress end,
  before_result = case when ?5 is not null then result end,
  progress = case when lane <> 'done' then progress end, result = null, expires_ms = null,
  lane = 'ready', due_ms = json_extract(j.value, '$[1]'), queue = coalesce(?3, queue), redrives = redrives + 1,
  attempt = 0, crashes = 0, crashes_alone = 0, suspect = 0, cancel = 0, life_ms = ?1, held_ms = 0, attempts_allowed = ?4, run = ?5,
  deadline_ms = case when ?6 then deadline_ms end, reason = null, rested_ms = null, fingerprint = null, error = null,
  batch = case when lane <> 'done' then batch end
from json_each(?2) j where message.seq = json_extract(j.value, '$[0]')

-- name: discard
-- ?1 seqs (JSON)
delete from message where seq in (select value from json_each(?1))

-- name: isolate
-- ?1 why, ?2 now, ?3 seqs (JSON)
update message set before = iif(lane = 'quarantine', before, {before}), lane = 'quarantine', reason = ?1, rested_ms = ?2
where seq in (select value from json_each(?3))

-- name: readmit
-- ?1 seqs (JSON)
update message set lane = 'dead', before = null,
  reason = iif(json_extract(before, '$.redrives') = redrives, json_extract(before, '$.reason'), reason)
where seq in (select value from json_each(?1))

-- name: hasten
-- ?1 now, ?2 seqs (JSON)
update message set due_ms = iif(due_ms > ?1, ?1, due_ms), wake_ms = iif(wake_ms > ?1, ?1, wake_ms)
where seq in (select value from json_each(?2))

-- name: can_postpone
-- ?1 seqs (JSON) of ready ones, ?2 now or null: those that are due later, ?3 run or null: those that it moved last
select json_group_array(seq) from message where seq in (select value from json_each(?1))
and (?2 is null or coalesce(due_ms, wake_ms) > ?2) and (?3 is null or run = ?3 or substr(run, 1, length(?3) + 1) = ?3 || '@')

-- name: postpone
-- ?1 [[seq, due, whether its group is strict], …], ?2 run or null. One that is out of line joins again when it is due; a strict group keeps
-- the order.
update message set
  due_ms = iif(grp is null or (turn = 0 and json_extract(j.value, '$[2]')), json_extract(j.value, '$[1]'), null),
  wake_ms = iif(grp is null or (turn = 0 and json_extract(j.value, '$[2]')), null, json_extract(j.value, '$[1]')),
  turn = iif(json_extract(j.value, '$[2]'), turn, null),
  run = ?2 || iif(attempt > 0, '@' || attempt, '')
from json_each(?1) j where message.seq = json_extract(j.value, '$[0]')

-- name: can_edit
-- ?1 seqs (JSON), ?2 run or null: those that it changed last, ?3 whether they were cancelled: those that may wait again
select json_group_array(seq) from message m where seq in (select value from json_each(?1))
and (?2 is null or run = ?2 or substr(run, 1, length(?2) + 1) = ?2 || '@')
and (not ?3 or reason = 'cancelled' and grp is null and batch is null
  and (key is null or exists (select 1 from unique_key k where k.task = m.task and k.key = m.key and k.id = m.id)))

-- name: edit
-- ?1 [[seq, [queue, priority, deadline or 0, due], each null where it stays], …], ?2 run or null. What was cancelled waits again.
-- Who stands in line, stands there by the new priority (see `reorder`).
update message set
  queue = coalesce(json_extract(j.value, '$[1][0]'), queue), priority = coalesce(json_extract(j.value, '$[1][1]'), priority),
  deadline_ms = nullif(coalesce(json_extract(j.value, '$[1][2]'), deadline_ms), 0),
  due_ms = coalesce(json_extract(j.value, '$[1][3]'), due_ms),
  turn = iif(turn > 0 and not exists (select 1 from queue q where q.name = message.queue and q.group_order = 'strict'),
    (turn & 72057594037927935) | (coalesce(json_extract(j.value, '$[1][1]'), priority) << 56), turn),
  lane = 'ready', reason = null, rested_ms = null, expires_ms = null, run = ?2 || iif(attempt > 0, '@' || attempt, '')
from json_each(?1) j where message.seq = json_extract(j.value, '$[0]')

-- name: cancel_by_run
-- ?1 now, ?2 seqs (JSON) of ready ones, ?3 run: as `cancel`
update message set lane = 'done', due_ms = null, turn = null, wake_ms = null, reason = 'cancelled', rested_ms = ?1, deferral = null,
  expires_ms = ?1 + 86400000, run = ?3 || iif(attempt > 0, '@' || attempt, '')
where seq in (select value from json_each(?2))

-- name: return
-- ?1 [[seq, whether the head of its group blocks it], …]: as before the redrive. The head that it was it is again, where it still blocks.
update message set
  turn = iif(turn = 0 and json_extract(j.value, '$[1]') and json_extract(before, '$.blocked') and json_extract(before, '$.queue') = queue, 0, null),
  wake_ms = null, parked_ms = null, due_ms = null, deferral = null,
  lane = json_extract(before, '$.lane'), redrives = json_extract(before, '$.redrives'), queue = json_extract(before, '$.queue'),
  reason = json_extract(before, '$.reason'), rested_ms = json_extract(before, '$.rested_ms'), attempt = json_extract(before, '$.attempt'),
  crashes = json_extract(before, '$.crashes'), crashes_alone = json_extract(before, '$.crashes_alone'),
  suspect = json_extract(before, '$.suspect'), life_ms = json_extract(before, '$.life_ms'), held_ms = json_extract(before, '$.held_ms'),
  deadline_ms = json_extract(before, '$.deadline_ms'), attempts_allowed = json_extract(before, '$.attempts_allowed'),
  fingerprint = json_extract(before, '$.fingerprint'), error = json_extract(before, '$.error'), run = json_extract(before, '$.run'),
  expires_ms = json_extract(before, '$.expires_ms'), progress = iif(json_extract(before, '$.lane') = 'done', before_progress, progress),
  result = before_result, before = null, before_progress = null, before_result = null
from json_each(?1) j where message.seq = json_extract(j.value, '$[0]')

-- name: stored
-- ?1 ids (JSON)
select json_group_array(id) from message where id in (select value from json_each(?1))

-- name: restore
insert into message(id, task, queue, lane, priority, fence, attempt, crashes, crashes_alone, redrives, suspect, enqueued_ms, life_ms, held_ms,
  deadline_ms, attempts_allowed, version, key, grp, worker, producer, reason, rested_ms, fingerprint, error, meta, faults, batch, body, progress)
values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: key_until
select until_ms from unique_key where task = ? and key = ? and id = ?

-- name: free_key
delete from unique_key where task = ? and key = ?

-- name: counts
-- ?1 now, ?2 queue
select
  count(*) filter (where lane = 'ready' and due_ms <= ?1)
    + (select count(*) from message where wake_ms <= ?1 and turn is null and queue = ?2),
  count(*) filter (where lane = 'ready' and due_ms > ?1)
    + (select count(*) from message where wake_ms > ?1 and turn is null and queue = ?2),
  count(*) filter (where lane = 'leased'),
  min(due_ms) filter (where lane = 'ready' and due_ms <= ?1),
  (select min(wake_ms) from message where wake_ms <= ?1 and turn is null and queue = ?2),
  (select count(*) from message where turn > 0 and queue = ?2)
from message where due_ms is not null and queue = ?2

-- name: due_counts
-- ?1 queue, ?2 bounds (JSON), ?3 until when leases are left out: [[how many, how many of them have failed before], ...] between them, each from an
-- index alone. A count without the lane takes half the time, and further ahead no lease ends.
select json_group_array(json_array(
  case when low < ?3 then
    (select count(*) from message where queue = ?1 and priority = 0 and due_ms > low and due_ms <= high and lane = 'ready')
    + (select count(*) from message where queue = ?1 and priority = 1 and due_ms > low and due_ms <= high and lane = 'ready')
    + (select count(*) from message where queue = ?1 and priority = 2 and due_ms > low and due_ms <= high and lane = 'ready')
    + (select count(*) from message where queue = ?1 and priority = 3 and due_ms > low and due_ms <= high and lane = 'ready')
  else
    (select count(*) from message where queue = ?1 and priority = 0 and due_ms > low and due_ms <= high)
    + (select count(*) from message where queue = ?1 and priority = 1 and due_ms > low and due_ms <= high)
    + (select count(*) from message where queue = ?1 and priority = 2 and due_ms > low and due_ms <= high)
    + (select count(*) from message where queue = ?1 and priority = 3 and due_ms > low and due_ms <= high)
  end + (select count(*) from message where queue = ?1 and wake_ms > low and wake_ms <= high and turn is null),
  (select count(*) from message where queue = ?1 and priority = 0 and due_ms > low and due_ms <= high and lane = 'ready' and attempt > 0)
  + (select count(*) from message where queue = ?1 and priority = 1 and due_ms > low and due_ms <= high and lane = 'ready' and attempt > 0)
  + (select count(*) from message where queue = ?1 and priority = 2 and due_ms > low and due_ms <= high and lane = 'ready' and attempt > 0)
  + (select count(*) from message where queue = ?1 and priority = 3 and due_ms > low and due_ms <= high and lane = 'ready' and attempt > 0)
  + (select count(*) from message where queue = ?1 and wake_ms > low and wake_ms <= high and turn is null and attempt > 0)))
from (select value low, lead(value) over (order by key) high from json_each(?2)) where high is not null

-- name: resting_counts
select lane, count(*) from message where rested_ms is not null and queue = ?1 group by lane

-- name: counts_by_queue
-- ?1 now; a pass over each index that holds all of a lane, whatever the number of queues
select queue, sum(ready), sum(scheduled), sum(leased), sum(dead), sum(quarantine), sum(done),
  coalesce((?1 - min(oldest)) / 1000.0, 0.0), sum(parked) from (
  select queue,
    count(*) filter (where lane = 'ready' and due_ms <= ?1) ready,
    count(*) filter (where lane = 'ready' and due_ms > ?1) scheduled,
    count(*) filter (where lane = 'leased') leased,
    0 dead, 0 quarantine, 0 done,
    min(due_ms) filter (where lane = 'ready' and due_ms <= ?1) oldest, 0 parked
  from message where due_ms is not null group by queue
  union all select queue, 0, 0, 0, 0, 0, 0, null, count(*) from message where turn > 0 group by queue
  union all select queue, count(*) filter (where wake_ms <= ?1), count(*) filter (where wake_ms > ?1), 0, 0, 0, 0,
    min(wake_ms) filter (where wake_ms <= ?1), 0 from message where wake_ms is not null and turn is null group by queue
  union all select queue, 0, 0, 0, count(*) filter (where lane = 'dead'), count(*) filter (where lane = 'quarantine'),
    count(*) filter (where lane = 'done'), null, 0 from message where rested_ms is not null group by queue
  union all select name, 0, 0, 0, 0, 0, 0, null, 0 from queue)
group by queue

-- name: queues
-- From one queue to the next in each index: however many messages there are, as many steps as queues.
with recursive
  due(queue) as (
    select (select min(queue) from message indexed by message_due where due_ms is not null)
    union all select (select min(queue) from message indexed by message_due where due_ms is not null and queue > due.queue) from due
    where due.queue is not null
  ),
  woken(queue) as (
    select (select min(queue) from message indexed by message_wake where wake_ms is not null and turn is null)
    union all select (select min(queue) from message indexed by message_wake where wake_ms is not null and turn is null and queue > woken.queue) from woken
    where woken.queue is not null
  ),
  line(queue) as (
    select (select min(queue) from message indexed by message_group where turn is not null)
    union all select (select min(queue) from message indexed by message_group where turn is not null and queue > line.queue) from line
    where line.queue is not null
  ),
  rest(queue) as (
    select (select min(queue) from message indexed by message_rest_queue where rested_ms is not null)
    union all select (select min(queue) from message indexed by message_rest_queue where rested_ms is not null and queue > rest.queue) from rest
    where rest.queue is not null
  )
select queue from (
  select queue from due union select queue from woken union select queue from line union select queue from rest union select name from queue
) where queue is not null

-- name: failure_groups
select g.fingerprint, g.task, m.error, m.faults, g.count, g.first_ms, g.last_ms, g.sample, g.recent, g.earlier from (
  select coalesce(fingerprint, '') fingerprint, task, count(*) count, min(rested_ms) first_ms, max(rested_ms) last_ms, max(id) sample,
    {trend} from message where {where} group by 1, 2) g
join message m on m.id = g.sample order by g.count desc, g.fingerprint, g.task

-- name: all_failure_groups
-- As `failure_groups` where the index of groups alone knows which messages are meant. The sample is the one that died last.
select g.fingerprint, g.task, m.error, m.faults, g.count, g.first_ms, g.last_ms, m.id, g.recent, g.earlier from (
  select coalesce(fingerprint, '') fingerprint, task, sum(count) count, min(first_ms) first_ms, max(last_ms) last_ms, max(sample) sample,
    sum(recent) recent, sum(earlier) earlier from (
    select f.*, (select s.seq from message s indexed by message_rest_group where s.lane = 'dead' and s.fingerprint is f.fingerprint
      and s.task = f.task and s.rested_ms = f.last_ms order by s.seq desc limit 1) sample from (
      select fingerprint, task, count(*) count, min(rested_ms) first_ms, max(rested_ms) last_ms, {trend}
      from message indexed by message_rest_group where {where} group by fingerprint, task) f)
  group by 1, 2) g
join message m on m.seq = g.sample order by g.count desc, g.fingerprint, g.task

-- name: sweep
-- ?1 now: forget what was kept long enough
delete from message where seq in (select seq from message where expires_ms < ?1 order by expires_ms limit 1000)

-- name: nth_newest
-- ?1 lane, ?2 queue, ?3 n from 0
select rested_ms, seq from message where lane = ?1 and rested_ms is not null and queue = ?2
order by rested_ms desc, seq desc limit 1 offset ?3

-- name: retain
-- ?1 lane, ?2 queue, ?3 rested, ?4 seq: remove what is older than that
delete from message where seq in (select seq from message where lane = ?1 and rested_ms is not null and queue = ?2
  and (rested_ms, seq) < (?3, ?4) order by rested_ms, seq limit 1000)

-- name: sweep_batches
delete from batch where id in (select id from batch where expires_ms < ?1 order by expires_ms limit 1000)

-- name: keep_keys
-- ?1 now: of keys whose time is over, those whose message is stored: held for its life alone from now on, and not looked at again
update unique_key set until_ms = 0 where (task, key) in (
  select task, key from unique_key where until_ms > 0 and until_ms <= ?1 order by until_ms limit 1000)
and exists (select 1 from message m where m.id = unique_key.id and m.task = unique_key.task and m.key = unique_key.key)

-- name: sweep_keys
-- ?1 now: after `keep_keys`, so that none which is kept comes before those that go
delete from unique_key where (task, key) in (
  select task, key from unique_key where until_ms > 0 and until_ms <= ?1 order by until_ms limit 1000)
and not exists (select 1 from message m where m.id = unique_key.id and m.task = unique_key.task and m.key = unique_key.key)

-- name: count_members
-- ?1 [[batch, what to add to each count], …]
insert into batch(id, open, done, dead, quarantine, cancelled, discarded, duplicate, opened, died)
select json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'), json_extract(value, '$[3]'),
  json_extract(value, '$[4]'), json_extract(value, '$[5]'), json_extract(value, '$[6]'), json_extract(value, '$[7]'),
  json_extract(value, '$[8]'), json_extract(value, '$[9]') from json_each(?1) where true
on conflict(id) do update set open = open + excluded.open, done = done + excluded.done, dead = dead + excluded.dead,
  quarantine = quarantine + excluded.quarantine, cancelled = cancelled + excluded.cancelled, discarded = discarded + excluded.discarded,
  duplicate = duplicate + excluded.duplicate, opened = opened + excluded.opened, died = died + excluded.died, changed = 1, expires_ms = null

-- name: members
-- ?1 seqs (JSON): [[seq, batch, the count that it is in], …] of those that have a batch
select json_group_array(json_array(seq, batch, case lane when 'dead' then lane when 'quarantine' then lane
  when 'done' then iif(reason is 'cancelled', reason, lane) else 'open' end))
from message where seq in (select value from json_each(?1)) and batch is not null

-- name: discard_members
-- ?1 lane, ?2 queue, ?3 ?4 as `retain`, of what is dead: count the members that it removes
insert into batch(id, open, done, dead, quarantine, cancelled, discarded, duplicate, opened, died)
select batch, 0, 0, -1, 0, 0, 1, 0, 0, 0 from (
  select batch from message where lane = ?1 and rested_ms is not null and queue = ?2
  and (rested_ms, seq) < (?3, ?4) order by rested_ms, seq limit 1000) where typeof(batch) = 'text'
on conflict(id) do update set dead = dead + excluded.dead, discarded = discarded + excluded.discarded, changed = 1, expires_ms = null

-- name: ended
-- ?1 batches (JSON): those that have nothing open
select json_group_array(id) from batch where id in (select value from json_each(?1)) and open = 0

-- name: batch_counts
-- ?1 batches (JSON)
select id, open, done, dead, quarantine, cancelled, discarded, duplicate, opened, died from batch where id in (select value from json_each(?1))

-- name: changed_batches
-- ?1 after this id, ?2 limit
select id from batch where changed and (open = 0 or dead + quarantine > 0) and id > ?1 order by id limit ?2

-- name: batch_ids
-- ?1 after this id, ?2 limit
select id from batch where id > ?1 order by id limit ?2

-- name: failed_batches
-- ?1 after this id, ?2 limit
select id from batch where dead + quarantine > 0 and id > ?1 order by id limit ?2

-- name: mark_batch
-- the time to remove it or null, its id, and its counts as they were seen
update batch set changed = 0, expires_ms = ? where id = ? and open = ? and done = ? and dead = ? and quarantine = ? and cancelled = ?
and discarded = ? and duplicate = ? and opened = ? and died = ?

-- name: miscounted
-- [batch, whether a count is no number, then open as counted and as stored, dead, quarantine] of each that is not right
select * from ({miscounted})

-- name: recount
update batch set open = m.open_stored, dead = m.dead_stored, quarantine = m.quarantine_stored, done = cast(done as integer),
  cancelled = cast(cancelled as integer), discarded = cast(discarded as integer), duplicate = cast(duplicate as integer),
  opened = cast(opened as integer), died = cast(died as integer), changed = 1, expires_ms = null
from ({miscounted}) m where batch.id = m.id

-- name: configure
insert into queue(name, paused, group_width, group_order, on_dead) values (?1, coalesce(?2, 0), ?3, ?4, ?5)
on conflict(name) do update set paused = coalesce(?2, paused), group_width = coalesce(?3, group_width),
  group_order = coalesce(?4, group_order), on_dead = coalesce(?5, on_dead)

-- name: group_settings
-- ?1 queue: the width of its groups, their order, what a death does, and whether a group has a width of its own other than 1
select coalesce((select width from group_width where queue = ?1 and name = ''), q.group_width, 1), coalesce(q.group_order, 'turns'),
  coalesce(q.on_dead, 'skip'), exists (select 1 from group_width where queue = ?1 and name > '' and width <> 1)
from (select 1) left join queue q on q.name = ?1

-- name: set_group_width
insert into group_width(queue, name, width) values (?1, ?2, ?3) on conflict(queue, name) do update set width = excluded.width

-- name: unset_group_width
delete from group_width where queue = ?1 and name = ?2

-- name: grouped
select exists (select 1 from message where turn is not null) or exists (select 1 from message where wake_ms is not null and turn is null),
  exists (select 1 from batch)  -- and whether anything is, or was, of a batch

-- name: touched
-- ?1 seqs (JSON) of what is leased: the groups in which they hold places, though a damaged turn may not say so
select json_group_array(distinct json_array(queue, grp)) from message where seq in (select value from json_each(?1))
and turn is not null

-- name: settled_in_groups
-- ?1 now, ?2 seqs (JSON), ?3 queue, ?4 strict, ?5 block: what was settled keeps its place if its wait has no length, or if its group is
-- strict and it is neither done nor skipped. (A plus keeps the planner off the index of the groups.)
update message set
  turn = case when lane = 'ready' and (due_ms <= ?1 or ?4) then 0 when lane in ('dead', 'quarantine') and ?5 then 0 end,
  wake_ms = case when lane = 'ready' and due_ms > ?1 and not ?4 then due_ms end,
  due_ms = case when lane = 'ready' and due_ms > ?1 and not ?4 then null else due_ms end
where seq in (select value from json_each(?2)) and +queue = ?3 and +turn = 0 and lane <> 'leased'

-- name: touched_by_rest
-- ?1 lane, ?2 queue, ?3 ?4 as `retain`: the groups that are held by what it removes
select json_group_array(distinct json_array(queue, grp)) from (
  select queue, grp, turn from message where lane = ?1 and rested_ms is not null and queue = ?2
  and (rested_ms, seq) < (?3, ?4) order by rested_ms, seq limit 1000) where turn = 0

-- name: woken
-- ?1 queue, ?2 now, ?3 limit: those whose wait is over, as [[seq, group, priority], …]
select json_group_array(json_array(seq, grp, priority)) from (
  select seq, grp, priority from message where queue = ?1 and wake_ms <= ?2 and turn is null order by wake_ms, seq limit ?3)

-- name: park
-- ?1 [[seq, turn], …], ?2 now
update message set turn = json_extract(j.value, '$[1]'), wake_ms = null, parked_ms = ?2
from json_each(?1) j where message.seq = json_extract(j.value, '$[0]')

-- name: admit
-- ?1 queue, ?2 groups (JSON), ?3 now, ?4 their width: one more message of each group that has a place free
update message set turn = 0, due_ms = max(?3, coalesce(wake_ms, 0)), wake_ms = null, parked_ms = null,
  held_ms = held_ms + max(0, ?3 - max(coalesce(parked_ms, ?3), coalesce(wake_ms, 0))) where seq in (
  select (select p.seq from message p where p.queue = ?1 and p.grp = g.value and p.turn > 0 order by p.turn limit 1)
  from json_each(?2) g
  where (select count(*) from message t where t.queue = ?1 and t.grp = g.value and t.turn = 0)
    < coalesce((select width from group_width w where w.queue = ?1 and w.name = g.value), ?4))

-- name: admit_several
-- ?1 ?2 ?3 ?4 as `admit`: as many messages of each group as it has places free, in order. It counts the places that are taken once.
update message set turn = 0, due_ms = max(?3, coalesce(wake_ms, 0)), wake_ms = null, parked_ms = null,
  held_ms = held_ms + max(0, ?3 - max(coalesce(parked_ms, ?3), coalesce(wake_ms, 0))) where seq in (
  with recursive line(grp, turn, taken, width) as (
    select value, 0, (select count(*) from message t where t.queue = ?1 and t.grp = value and t.turn = 0),
      coalesce((select width from group_width w where w.queue = ?1 and w.name = value), ?4) from json_each(?2)
    union all
    select grp, (select min(p.turn) from message p where p.queue = ?1 and p.grp = line.grp and p.turn > line.turn), taken + 1, width
    from line where taken < width and turn is not null)
  select m.seq from line cross join message m on m.queue = ?1 and m.grp = line.grp and m.turn = line.turn where line.turn > 0)

-- name: rejoin
-- ?1 seq, ?2 turn, ?3 wake, ?4 now
update message set turn = ?2, wake_ms = ?3, parked_ms = ?4, due_ms = null where seq = ?1

-- name: reorder
-- ?1 queue, ?2 strict: who stands in line stands there by the other order now; the low 56 bits are the number he joined by
update message set turn = (turn & 72057594037927935) | iif(?2, 0, priority << 56) where queue = ?1 and turn > 0

-- name: unpark_waiting
-- ?1 queue, ?2 now: of a queue that is strict no more, those whose time has not come
update message set turn = null where queue = ?1 and turn > 0 and wake_ms > ?2

-- name: give_way
-- ?1 queue, ?2 now: of a queue that is strict no more, heads that kept their place through a wait
update message set turn = null, wake_ms = due_ms, due_ms = null where queue = ?1 and turn = 0 and lane = 'ready' and due_ms > ?2

-- name: unblock
-- ?1 queue: no dead head holds a group here any more
update message set turn = null where queue = ?1 and turn = 0 and rested_ms is not null

-- name: parked_groups
-- ?1 queue
select json_group_array(distinct grp) from message where queue = ?1 and turn > 0 and typeof(grp) = 'text'

-- name: parked_queues
select json_group_array(distinct queue) from message where turn > 0 and typeof(queue) = 'text'

-- name: resume
update message set turn = null where queue = ?1 and grp = ?2 and turn = 0 and rested_ms is not null

-- name: groups
-- ?1 queue, ?2 width
select m.grp, coalesce(w.width, ?2), m.taken, m.parked, m.blocked from (
  select grp, count(*) filter (where turn = 0) taken, count(*) filter (where turn > 0) parked,
    max(iif(turn = 0 and rested_ms is not null, id, null)) blocked
  from message where queue = ?1 and turn is not null group by grp) m
  left join group_width w on w.queue = ?1 and w.name = m.grp
union all
select name, width, 0, 0, null from group_width w where queue = ?1 and name > ''
  and not exists (select 1 from message where queue = ?1 and grp = w.name and turn is not null)
order by 1

-- name: stuck_groups
-- ?1 queue: groups in which a message is parked though a place is free
select g.grp from (
  select queue, grp, count(*) filter (where turn = 0) taken from message
  where queue = ?1 and turn is not null group by grp having count(*) filter (where turn > 0) > 0) g
where taken < coalesce((select width from group_width w where w.queue = ?1 and w.name = g.grp), ?2)

-- name: read_cells
-- ?1 keys (JSON), ?2 now
select json_group_array(json_array(key, version, hex(value))) from cell
where key in (select value from json_each(?1)) and value is not null and (expires_ms is null or expires_ms > ?2) and {sound}

-- name: cells_now
-- ?1 keys (JSON), ?2 now: the highest version of what is gone, and of those that are there [[key, version, whether it is live], …]. A version that
-- is none counts as one that cannot have been given yet, of a cell that is not there.
select (select iif({sound}, version, ?2 * 16) from cell_gone), json_group_array(json_array(key, iif({sound}, version, ?2 * 16),
  {sound} and value is not null and (expires_ms is null or expires_ms > ?2)))
from cell where key in (select value from json_each(?1))

-- name: odd_settings
-- what no version of ours writes: queue, group or '', setting, value
select name, '', 'group_width', quote(group_width) from queue where typeof(group_width) not in ('integer', 'null') or group_width < 1
union all select name, '', 'group_order', quote(group_order) from queue where group_order not in ('turns', 'strict')
union all select name, '', 'on_dead', quote(on_dead) from queue where on_dead not in ('skip', 'block')
union all select name, '', 'paused', quote(paused) from queue where paused not in (0, 1)
union all select queue, name, 'width', quote(width) from group_width where typeof(width) <> 'integer' or width < 1 limit 20

-- name: odd_cells
-- those of which something is not what a version of ours writes
select key from cell where not {sound} or typeof(key) <> 'text' or typeof(value) not in ('blob', 'null')
  or typeof(expires_ms) not in ('integer', 'null')
union all select 'the counter of cells' from cell_gone where not {sound} limit 20

-- name: mend_cells
delete from cell where not {sound} or typeof(key) <> 'text' or typeof(value) not in ('blob', 'null')
  or typeof(expires_ms) not in ('integer', 'null')

-- name: mend_versions
-- ?1 now
update cell_gone set version = ?1 * 16 where not {sound}

-- name: write_cells
-- ?1 [[key, version, where its value begins (null: deleted), how long it is, expires], …], ?2 the values
insert into cell(key, version, value, expires_ms)
select json_extract(j.value, '$[0]'), json_extract(j.value, '$[1]'), substr(?2, json_extract(j.value, '$[2]'), json_extract(j.value, '$[3]')),
  json_extract(j.value, '$[4]') from json_each(?1) j where true
on conflict(key) do update set version = excluded.version, value = excluded.value, expires_ms = excluded.expires_ms

-- name: expired_cells
-- ?1 now: how many a sweep would remove, and their highest version
select count(*), max(iif({sound}, version, 0)) from (select version from cell where expires_ms <= ?1 order by expires_ms limit 1000)

-- name: keep_versions
update cell_gone set version = max(version, ?1)

-- name: sweep_cells
-- ?1 now
delete from cell where key in (select key from cell where expires_ms <= ?1 order by expires_ms limit 1000)

-- name: read_clock
-- ?1 the cell of the clock's mark
select value from cell where key = ?1

-- name: write_clock
-- ?1 the cell, ?2 the mark
insert into cell(key, version, value) values (?1, (select version + 1 from cell_gone), ?2)
on conflict(key) do update set version = version + 1, value = excluded.value, expires_ms = null

-- name: no_lease_runs
-- ?1 now: a lease that has run out does not count, as perhaps nobody ever claims its message
select not exists (select 1 from message indexed by message_due where lane = 'leased' and due_ms > ?1)
