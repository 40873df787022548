-- Every statement of stores/postgres/, by the name it is called with there. `-- name:` starts one, and is sent with it: so logs and
-- pg_stat_statements show the name.
--
-- {s} is the schema; the other words in braces are fragments of postgres/statements.py, some with the number of a parameter: {now[5]} is the
-- time, $5, which tests give, or the server's own at the start of the transaction. A statement with two names is two: the first reads each
-- priority's messages from the first on, the second only {parts[n]} p of the due index, $n and the next five, where floors are kept
-- (postgres/floors.py). Of p {due} is what is due by $5, {coming} all that is or will be. Where the second name ends in `members`, it is for messages
-- of which some are members of batches: it counts them, and says which batches they are of, and of which one died.
-- Batches travel as arrays. What a statement changed comes back as a count and, only where somebody was left out, as a list.

-- name: migration_9
create sequence {s}.message_seq;
create table {s}.message (
  -- What every message has stands first, and what few have last: the server reads a row from its front.
  id uuid not null,
  seq bigint not null,                    -- never used twice, as an id may be; puts of one commit keep their order by it
  enqueued_ms bigint not null,
  fence integer not null default 0,
  attempt integer not null default 0,
  priority smallint not null,
  due_ms bigint,                          -- null while resting: only what can be claimed stands in message_due
  lane text collate "C" not null default 'ready',
  queue text collate "C" not null,
  task text collate "C" not null,
  body bytea not null,
  producer text collate "C",
  worker text collate "C",
  faults text[],                          -- JSON each: fault history, oldest first
  grp text collate "C",
  place integer,                          -- of a grouped message that has one of its group's places: which
  turn bigint,                            -- of a grouped message that is parked: its place in the line
  wake_ms bigint,                         -- of a grouped message without a place: when it may be due
  parked_ms bigint,                       -- of a parked message: since when; its group holds it from then on
  life_ms bigint,                         -- null: enqueued_ms
  held_ms bigint,
  deadline_ms bigint,
  rested_ms bigint,
  expires_ms bigint,                      -- of a done message: when it is removed
  version bigint,                         -- null: 1
  crashes integer,
  crashes_alone integer,
  redrives integer,
  attempts_allowed integer,
  suspect smallint,                       -- 1: its last run was cut off; 2: and it runs alone now
  cancel boolean,
  key text collate "C",
  run text collate "C",
  reason text collate "C",
  fingerprint text collate "C",           -- of the last fault, set when it comes to rest
  error text collate "C",
  meta text,                              -- JSON: what rarely differs from its default (headers, correlation, content, …)
  progress bytea,
  result bytea,
  deferral text,                          -- JSON: why flow control holds it back
  before jsonb,                           -- what the redrive or the isolation replaced (message.Before)
  constraint message_id primary key (id) with (fillfactor = 45, deduplicate_items = off)
) with (fillfactor = 90, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000,
  autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 100000, autovacuum_vacuum_cost_delay = 0);
-- lane stands before seq as leases that ran out go first; so that counts read this index alone it is in there at all
create index message_due on {s}.message(queue, priority, due_ms, lane, seq) with (deduplicate_items = off) where due_ms is not null;
create index message_rest on {s}.message(lane, rested_ms, seq) where rested_ms is not null;
create index message_rest_queue on {s}.message(queue, lane, rested_ms, seq) where rested_ms is not null;
-- what failure groups and counts of dead letters are told from is all in there
create index message_failure on {s}.message(fingerprint, rested_ms, seq) include (task, id, queue, reason, error) where lane = 'dead';
-- What a page of dead letters is looked up by. That the column is there is said, and that they are dead said in other words, so that the
-- planner has no use of any of them but that which a query is made for.
create index message_task on {s}.message(task, rested_ms, seq) where lane between 'dead' and 'dead' and task is not null;
create index message_error on {s}.message(error, rested_ms, seq) where lane between 'dead' and 'dead' and error is not null;
create index message_reason on {s}.message(reason, rested_ms, seq) where lane between 'dead' and 'dead' and reason is not null;
-- What has failed before and is due, for claims that take some of it first. (The lane is said in words that only `claim_sharing` says, so that
-- no other statement has a use of this index, and that one no use of another.)
create index message_retry on {s}.message(queue, priority, due_ms, seq)
  where lane between 'ready' and 'ready' and attempt > 0 and due_ms is not null;
create index message_expires on {s}.message(expires_ms) where expires_ms is not null;
create unique index message_place on {s}.message(queue, grp, place) where place is not null;
create index message_line on {s}.message(queue, grp, turn) where turn is not null;
create index message_wake on {s}.message(queue, wake_ms, seq) where wake_ms is not null and turn is null;
create table {s}.unique_key (
  task text collate "C" not null,
  key text collate "C" not null,
  id uuid not null,
  until_ms bigint not null,               -- 0, or held at least until then, also after the message is gone
  primary key (task, key)
);
create index unique_key_until on {s}.unique_key(until_ms) where until_ms > 0;
create table {s}.queue (
  name text collate "C" primary key,
  paused boolean not null default false,
  group_width integer,
  group_order text collate "C",
  on_dead text collate "C"
);
-- A group: a transaction that changes its members locks its row first. Rows of groups that are empty are removed now and then.
create table {s}.line (
  queue text collate "C" not null,
  name text collate "C" not null,         -- of the group; empty: of every group of the queue
  width integer,                          -- its own; null: the queue's
  -- After a change of how a queue's groups are served, those who are parked are admitted in steps: up to which group, by name, in the row that
  -- stands for every group. Null: no more to do.
  admitting text collate "C",
  primary key (queue, name)
);
create index line_admitting on {s}.line(queue) where admitting is not null;
-- Cells go away with their time, so their versions come from the sequence of messages, which every role may use already. Doubled: some
-- schemas have a trigger that replaces a version which is one more than the last.
create table {s}.cell (
  key text collate "C" primary key,
  version bigint not null,
  value bytea,                            -- null counts as deleted
  expires_ms bigint,
  sweep_ms bigint                         -- about when it expires, and not before; rarely another, so that most swaps touch no index
) with (fillfactor = 70);
create index cell_sweep on {s}.cell(sweep_ms) where sweep_ms is not null;

-- name: migration_10
-- compatible from 10
-- Earlier programs would ack members of batches and not count them.
alter table {s}.message add column batch text collate "C";
create index message_batch on {s}.message(batch, lane, rested_ms, seq) where batch is not null and lane in ('dead', 'quarantine');
-- The counts of a batch (message.BatchCounts) are this row and its rows in batch_delta.
create table {s}.batch (
  id text collate "C" primary key,
  open bigint not null,
  done bigint not null,
  dead bigint not null,
  quarantine bigint not null,
  cancelled bigint not null,
  discarded bigint not null,
  duplicate bigint not null,
  opened bigint not null,
  died bigint not null,
  changed boolean not null,               -- since it was last marked
  expires_ms bigint                       -- when the row is removed, unless the counts change before
) with (fillfactor = 70);
create index batch_changed on {s}.batch(id) where changed;
create index batch_expires on {s}.batch(expires_ms) where expires_ms is not null;
-- What a commit adds to the counts of a batch: so many members moved from one count to another. Only inserted, so that no commit waits for another;
-- `fold` adds them to the row.
create table {s}.batch_delta (
  batch text collate "C" not null,
  was text collate "C",                   -- null: no member
  now text collate "C",                   -- null: removed, and another takes its place
  n integer not null
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
create index batch_delta_batch on {s}.batch_delta(batch);

-- name: put
-- $1 ids, $2 tasks, $3 queues, $4 priorities, $5 dues, $6 delays, $7 deadlines, $8 versions, $9 keys, $10 groups, $11 producers, $12 metas,
-- $13 bodies, $14 now, $15 batches, or null for none
insert into {s}.message(id, seq, task, queue, priority, due_ms, enqueued_ms, deadline_ms, version, key, producer, meta, body, batch)
select r.id, nextval('{s}.message_seq'), r.task, r.queue, r.priority, coalesce(r.due_ms, {now[14]} + r.delay_ms), {now[14]},
  r.deadline_ms, r.version, r.key, r.producer, r.meta, r.body, r.batch
from unnest($1::uuid[], $2::text[], $3::text[], $4::int[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[], $9::text[],
  $10::text[], $11::text[], $12::text[], $13::bytea[], $15::text[])
  r(id, task, queue, priority, due_ms, delay_ms, deadline_ms, version, key, grp, producer, meta, body, batch)

-- name: put_grouped
-- As `put`, some of them of groups. Strict groups go by the number alone; others by priority first, and what is not due yet
-- does not join before its time.
insert into {s}.message(id, seq, task, queue, priority, due_ms, enqueued_ms, deadline_ms, version, key, grp, producer, meta, body, batch,
  turn, wake_ms, parked_ms)
select r.id, r.seq, r.task, r.queue, r.priority, case when r.grp is null then r.due end, {now[14]}, r.deadline_ms, r.version, r.key, r.grp,
  r.producer, r.meta, r.body, r.batch,
  case when r.grp is null then null when q.group_order = 'strict' then r.seq
    when r.due <= {now[14]} then r.priority::bigint << 56 | r.seq end,
  case when r.grp is not null and r.due > {now[14]} then r.due end,
  case when r.grp is not null then {now[14]} end
from (select nextval('{s}.message_seq') seq, coalesce(u.due_ms, {now[14]} + u.delay_ms) due, u.*
  from unnest($1::uuid[], $2::text[], $3::text[], $4::int[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[], $9::text[],
    $10::text[], $11::text[], $12::text[], $13::bytea[], $15::text[])
    u(id, task, queue, priority, due_ms, delay_ms, deadline_ms, version, key, grp, producer, meta, body, batch)) r
left join {s}.queue q on q.name = r.queue

-- name: tell
-- $1 channel, $2 origin, $3 queue, $4 and $5 ranges of due times, $6 whether they are meant from now on, $7 now: a notification of messages that
-- were put in this transaction (`wake` in postgres/session.py)
select pg_notify($1::text, $2::text || coalesce((
  select string_agg(format(';%s-%s', r.since + r.low_ms, r.since + r.until_ms), '') from (
    select low_ms, until_ms, case when relative then {now[7]} else 0 end since
    from unnest($4::bigint[], $5::bigint[], $6::boolean[]) u(low_ms, until_ms, relative)) r), '') || ' ' || $3::text)

-- name: stored
-- $1 ids: those of them that are there
select id::text from {s}.message where id = any($1::uuid[])

-- name: keyed
-- $1 tasks, $2 keys, $3 ids: those of the ids that hold one of these keys, also after their message is gone
select k.id::text from unnest($1::text[], $2::text[]) as w(task, key) join {s}.unique_key k using (task, key)
where k.id = any($3::uuid[])

-- name: take_keys
-- $1 tasks, $2 keys, $3 ids, $4 for how long at least, $5 now. Takes those that are free, which it
-- gives, and locks the others, in one order.
insert into {s}.unique_key as k (task, key, id, until_ms)
select r.task, r.key, r.id, case when r.for_ms > 0 then {now[5]} + r.for_ms else 0 end
from unnest($1::text[], $2::text[], $3::uuid[], $4::bigint[]) r(task, key, id, for_ms) order by r.task collate "C", r.key collate "C"
on conflict (task, key) do update set id = k.id where false returning k.task, k.key

-- name: key_holders
-- $1 tasks, $2 keys, $3 now. After `take_keys`, as a statement of its own: it must see what those it waited for have committed.
select r.n, k.id::text, k.until_ms, m.lane, m.due_ms, m.reason, {now[3]}
from unnest($1::text[], $2::text[]) with ordinality r(task, key, n)
join {s}.unique_key k on k.task = r.task and k.key = r.key
left join {s}.message m on m.id = k.id and m.task = k.task and m.key = k.key

-- name: lock_waiting
-- $1 ids in order: those of them that wait, and the queue of each that may be replaced. One that another transaction has is left to it.
select id::text, case when grp is null and batch is null and coalesce(redrives, 0) = 0 then queue end
from {s}.message where id = any($1::uuid[]) and lane = 'ready' order by id for no key update skip locked

-- name: replace_waiting
-- $1 to $13 as `put`, $14 now: these start over with what was put, under their ids and their numbers
update {s}.message m set priority = r.priority, due_ms = coalesce(r.due_ms, {now[14]} + r.delay_ms), life_ms = {now[14]},
  deadline_ms = r.deadline_ms, version = r.version, producer = r.producer, meta = r.meta, body = r.body, attempt = 0, crashes = null,
  crashes_alone = null, suspect = null, cancel = null, held_ms = null, attempts_allowed = null, run = null, worker = null, faults = null,
  progress = null, deferral = null, before = null
from unnest($1::uuid[], $2::text[], $3::text[], $4::int[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[], $9::text[],
  $10::text[], $11::text[], $12::text[], $13::bytea[])
  r(id, task, queue, priority, due_ms, delay_ms, deadline_ms, version, key, grp, producer, meta, body)
where m.id = r.id
returning m.id::text, case when m.due_ms > {now[14]} then 'scheduled' else 'ready' end

-- name: hold_keys
-- $1 tasks, $2 keys, $3 ids, $4 for how long at least, $5 now
update {s}.unique_key k set id = r.id, until_ms = case when r.for_ms > 0 then {now[5]} + r.for_ms else 0 end
from unnest($1::text[], $2::text[], $3::uuid[], $4::bigint[]) r(task, key, id, for_ms) where k.task = r.task and k.key = r.key

-- name: claim, claim_above
-- $1 queue, $2 limit, $3 lease, $4 worker, $5 now, $6 whether to claim nothing where someone waits to be woken, $7 leases that ran out later
-- are left to their holders.
-- What was still leased had run out: that is a crash, not an attempt. Ordered just as the index is: else it would sort all that is due.
with due as materialized (
  select at from {parts[8]} cross join lateral (
    select ctid as at from {s}.message m where m.queue = $1::text and m.priority = p.priority and {due} and {free}
    order by due_ms, lane, seq limit $2::int for no key update skip locked
  ) place limit case
    when exists (select from {s}.queue where name = $1::text and paused) then 0
    when $6::boolean and exists (
      select from {s}.message where queue = $1::text and wake_ms <= {now[5]}{woken[13]} and turn is null) then 0
    else $2::int end)
update {s}.message m set
  {lease}
from due where m.ctid = due.at
returning {claimed}

-- name: claim_skipping, claim_skipping_above
-- As `claim`, $8 tasks to skip, $9 how many due ones of a priority are looked at. Where there are more, one row of nulls comes last.
-- They are bounded by the place of the first that is not looked at, so that none is locked but what is taken.
with fence as materialized (
  select p.*, beyond.* from {parts[10]} left join lateral (
    select due_ms, lane, seq from {s}.message m where m.queue = $1::text and m.priority = p.priority and {due}
    order by due_ms, lane, seq limit 1 offset $9::int) beyond on true
  where not exists (select from {s}.queue where name = $1::text and paused)),
due as materialized (
  select at from fence p cross join lateral (
    select ctid as at from {s}.message m where m.queue = $1::text and m.priority = p.priority and {due}
      and (due_ms, lane, seq) < (coalesce(p.due_ms, 9223372036854775807), coalesce(p.lane, ''), coalesce(p.seq, 0))
      and task <> all($8::text[]) and {free} order by due_ms, lane, seq limit $2::int for no key update skip locked
  ) place limit case
    when $6::boolean and exists (
      select from {s}.message where queue = $1::text and wake_ms <= {now[5]}{woken[15]} and turn is null) then 0
    else $2::int end),
claimed as (
  update {s}.message m set
    {lease}
  from due where m.ctid = due.at
  returning {claimed})
select * from claimed union all
select null, null, null, null, null, null, null, null, null, null, null, null, null from (select from fence where due_ms is not null limit 1) more

-- name: claim_sharing, claim_sharing_above
-- As `claim` and `claim_skipping` ($8 none: nothing is skipped), $10 how many places go first to messages that have failed before. Priority by
-- priority, and in each first a turn of those, by an index of their own, then one of all that are due: a turn takes what the turns before it left.
with recursive fence as materialized (
  select p.*, due.*, retry.due_ms retry_ms, retry.seq retry_seq from {parts[11]} left join lateral (
    select due_ms, lane, seq from {s}.message m where cardinality($8::text[]) > 0 and m.queue = $1::text and m.priority = p.priority and {due}
    order by due_ms, lane, seq limit 1 offset $9::int) due on true
  left join lateral (
    select due_ms, seq from {s}.message m where cardinality($8::text[]) > 0 and lane between 'ready' and 'ready' and attempt > 0
      and m.queue = $1::text and m.priority = p.priority and {due}
    order by due_ms, seq limit 1 offset $9::int) retry on true
  where not exists (select from {s}.queue where name = $1::text and paused)),
turn(step, room, retries, at) as (
  select -1, case
    when $6::boolean and exists (
      select from {s}.message where queue = $1::text and wake_ms <= {now[5]}{woken[16]} and turn is null) then 0
    else $2::int end, $10::int, array[]::tid[]
  union all
  select t.step + 1, t.room - cardinality(taken.at), t.retries - case when t.step % 2 = 0 then 0 else cardinality(taken.at) end, taken.at
  from turn t cross join lateral (
    select case when t.step % 2 = 0 then array(
      select at from fence p cross join lateral (
        select ctid as at from {s}.message m where m.queue = $1::text and m.priority = p.priority and {due}
          and (due_ms, lane, seq) < (coalesce(p.due_ms, 9223372036854775807), coalesce(p.lane, ''), coalesce(p.seq, 0))
          and task <> all($8::text[]) and {free} and ctid <> all(t.at) order by due_ms, lane, seq limit t.room for no key update skip locked
      ) place where p.priority = t.step / 2 limit t.room)
    else array(
      select at from fence p cross join lateral (
        select ctid as at from {s}.message m where lane between 'ready' and 'ready' and attempt > 0 and m.queue = $1::text
          and m.priority = p.priority and {due}
          and (due_ms, seq) < (coalesce(p.retry_ms, 9223372036854775807), coalesce(p.retry_seq, 0))
          and task <> all($8::text[]) order by due_ms, seq limit least(t.retries, t.room) for no key update skip locked
      ) place where p.priority = (t.step + 1) / 2 limit least(t.retries, t.room))
    end at) taken
  where t.room > 0 and t.step < 7),
due as materialized (select unnest(at) at from turn),
claimed as (
  update {s}.message m set
    {lease}
  from due where m.ctid = due.at
  returning {claimed})
select * from claimed union all
select null, null, null, null, null, null, null, null, null, null, null, null, null from (select from fence where due_ms is not null limit 1) more

-- name: look
-- $1 queues of the asks, $2 now: the time, and whether a message waits to be woken
select {now[2]}, exists (select from unnest($1::text[]) a(queue) join {s}.message m on m.queue = a.queue
  and m.wake_ms <= {now[2]} and m.turn is null)

-- name: look_above
-- As `look`, $3 from when on messages of each queue may wait
select {now[2]}, exists (select from unnest($1::text[], $3::bigint[]) a(queue, low_ms) join {s}.message m on m.queue = a.queue
  and m.wake_ms >= a.low_ms and m.wake_ms <= {now[2]} and m.turn is null)

-- name: look_behind
-- $1 queues, $2 priorities (4: messages of groups that wait), $3 to $6 parts of their indexes: of each that holds one the first message, also
-- one that is locked or not due yet, and what the way there took, in ms
select p.n, first.due_ms, first.lane, first.seq, (extract(epoch from clock_timestamp() - p.began) * 1000)::float8
from (select u.*, clock_timestamp() began from unnest($1::text[], $2::int[], $3::bigint[], $4::text[], $5::bigint[], $6::bigint[])
  with ordinality u(queue, priority, low_ms, low_lane, low_seq, until_ms, n)) p
left join lateral (
  (select due_ms, lane, seq from {s}.message m where m.queue = p.queue and m.priority = p.priority
    and (due_ms, lane, seq) >= (p.low_ms, p.low_lane, p.low_seq) and due_ms <= p.until_ms order by due_ms, lane, seq limit 1)
  union all
  (select wake_ms, '', seq from {s}.message m where p.priority = 4 and m.queue = p.queue and wake_ms >= p.low_ms
    and wake_ms <= p.until_ms and turn is null order by wake_ms, seq limit 1)) first on true

-- name: next_due, next_due_above
-- $1 queue, $2 now
select {now[2]}, min(due_ms) from (
  select due_ms from {parts[3]} cross join lateral (
    select due_ms from {s}.message m where m.queue = $1::text and m.priority = p.priority and {coming}
    order by due_ms limit 1) first
  union all
  (select wake_ms from {s}.message where queue = $1::text and wake_ms is not null{woken[8]} and turn is null order by wake_ms limit 1)) coming
where not exists (select from {s}.queue where name = $1::text and paused)

-- name: next_due_skipping, next_due_skipping_above
-- As `next_due`, $3 tasks to skip, $4 how many of a priority are looked at: the first that is not counts as one that is wanted.
select {now[2]}, min(due_ms) from (
  select coalesce(wanted.due_ms, beyond.due_ms) due_ms
  from {parts[5]} left join lateral (
    select due_ms, lane, seq from {s}.message m where m.queue = $1::text and m.priority = p.priority and {coming}
    order by due_ms, lane, seq limit 1 offset $4::int) beyond on true
  left join lateral (
    select due_ms from {s}.message m where m.queue = $1::text and m.priority = p.priority and {coming}
      and (due_ms, lane, seq) < (coalesce(beyond.due_ms, 9223372036854775807), coalesce(beyond.lane, ''), coalesce(beyond.seq, 0))
      and task <> all($3::text[]) order by due_ms, lane, seq limit 1) wanted on true
  union all
  (select wake_ms from {s}.message where queue = $1::text and wake_ms is not null{woken[10]} and turn is null order by wake_ms limit 1)) coming
where not exists (select from {s}.queue where name = $1::text and paused)

-- name: ack
-- $1 ids, $2 fences, $3 seqs
with gone as (
  delete from {s}.message m using unnest($1::uuid[], $2::int[], $3::bigint[]) r(id, fence, seq)
  where m.id = r.id and m.fence = r.fence and m.seq = r.seq and m.lane = 'leased' returning m.id)
select count(*), null, case when count(*) < cardinality($1::uuid[]) then array_agg(id)::text end from gone

-- name: ack_keyed, ack_members
-- As `ack`, and frees the keys that they held for their life only: in the order in which `take_keys` locks them, as everywhere.
with gone as (
  delete from {s}.message m using unnest($1::uuid[], $2::int[], $3::bigint[]) r(id, fence, seq)
  where m.id = r.id and m.fence = r.fence and m.seq = r.seq and m.lane = 'leased' returning m.id, m.task, m.key{member[gone]}),
freed as (
  delete from {s}.unique_key k using (select * from gone where key is not null order by task, key) g
  where k.task = g.task and k.key = g.key and k.id = g.id and k.until_ms = 0){counted[gone]}
select count(*), null, case when count(*) < cardinality($1::uuid[]) then array_agg(id)::text end{batches} from gone

-- name: ack_swapping
-- $1 ids, $2 fences, $3 seqs, and of each the one cell that it swaps: $4 keys in order, none twice, $5 expected versions, $6 values, $7 times
-- to live, $8 now. As `ack`, of those whose swap applies. All cells are locked in the order of their keys before the first message is.
with asked as (
  select a.*, coalesce(c.version, 0) actual, c.version is not null there
  from unnest($1::uuid[], $2::int[], $3::bigint[], $4::text[], $5::bigint[], $6::bytea[], $7::bigint[])
    a(id, fence, seq, key, version, value, ttl_ms) left join lateral (
    select case when value is not null and (expires_ms is null or expires_ms > {now[8]}) then version else 0 end "version"
    from {s}.cell where key = a.key for no key update) c on true),
fits as materialized (select * from asked where version = actual order by id),
gone as (
  delete from {s}.message m using fits f
  where m.id = f.id and m.fence = f.fence and m.seq = f.seq and m.lane = 'leased' returning m.id, f.key, f.value, f.ttl_ms, f.there),
changed as (
  update {s}.cell c set version = 2 * nextval('{s}.message_seq'), value = g.value, expires_ms = {now[8]} + g.ttl_ms,
    sweep_ms = (({now[8]} + g.ttl_ms) / 60000 + 1) * 60000
  from gone g where g.there and c.key = any (array[g.key])),
made as (
  insert into {s}.cell(key, version, value, expires_ms, sweep_ms)
  select key, 2 * nextval('{s}.message_seq'), value, {now[8]} + ttl_ms, (({now[8]} + ttl_ms) / 60000 + 1) * 60000 from gone where not there)
select count(*), null, case when count(*) < cardinality($1::uuid[]) then array_agg(id)::text end from gone

-- name: keep, keep_members
-- $1 ids, $2 fences, $3 seqs, $4 how long or null, $5 reasons, $6 results, $7 now: acks of what is kept
with moved as (
  update {s}.message m set lane = 'done', due_ms = null, place = null, rested_ms = {now[7]}, expires_ms = {now[7]} + r.keep_ms,
    reason = r.reason, result = r.result, deferral = null
  from unnest($1::uuid[], $2::int[], $3::bigint[], $4::bigint[], $5::text[], $6::bytea[]) r(id, fence, seq, keep_ms, reason, result)
  where m.id = r.id and m.fence = r.fence and m.seq = r.seq and m.lane = 'leased' returning m.id{member[moved]}){counted[moved]}
select count(*), null, case when count(*) < cardinality($1::uuid[]) then array_agg(id)::text end{batches} from moved

-- name: retry, retry_members
-- $1 ids, $2 fences, $3 seqs, $4 dues, $5 faults, $6 now: `move` for the most frequent of its cases, a counted retry
with moved as (
  update {s}.message m set
    lane = case when m.cancel then 'done' else 'ready' end,
    due_ms = case when m.cancel then null else r.due_ms end,
    suspect = null,
    deferral = null,
    reason = case when m.cancel then 'cancelled' end,
    rested_ms = case when m.cancel then {now[6]} end,
    expires_ms = case when m.cancel then {now[6]} + 86400000 end,
    faults = case when m.faults is null then array[r.fault] when cardinality(m.faults) < 20 then m.faults || r.fault
      else m.faults[1:10] || m.faults[12:20] || r.fault end
  from unnest($1::uuid[], $2::int[], $3::bigint[], $4::bigint[], $5::text[]) r(id, fence, seq, due_ms, fault)
  where m.id = r.id and m.fence = r.fence and m.seq = r.seq and m.lane = 'leased' returning m.id, m.cancel{member[moved]}){counted[moved]}
select count(*), (array_agg(id) filter (where cancel))::text, case when count(*) < cardinality($1::uuid[]) then array_agg(id)::text end{batches}
from moved

-- name: move, move_members
-- $1 ids, $2 fences, $3 seqs, $4 lanes, $5 dues, $6 whether it counts, $7 whether it was held, $8 reasons, $9 fingerprints, $10 errors, $11 faults,
-- $12 now, $13 deferrals, $14 whether its process died, $15 and it was alone in it; a cancelled message is done, whatever was decided
with moved as (
  update {s}.message m set
    lane = case when m.cancel then 'done' else r.lane end,
    due_ms = case when m.cancel then null else r.due_ms end,
    attempt = case when r.counts then m.attempt else m.attempt - 1 end,
    crashes = case when r.crashed then coalesce(m.crashes, 0) + 1 else m.crashes end,
    crashes_alone = case when r.alone then coalesce(m.crashes_alone, 0) + 1 else m.crashes_alone end,
    suspect = case when r.crashed or not r.counts and m.suspect is not null then 1 end,
    deferral = case when m.cancel then null else r.deferral end,
    held_ms = case when r.held and r.due_ms > {now[12]} then coalesce(m.held_ms, 0) + r.due_ms - {now[12]} else m.held_ms end,
    reason = case when m.cancel then 'cancelled' else r.reason end,
    rested_ms = case when m.cancel or r.due_ms is null then {now[12]} end,
    expires_ms = case when m.cancel then {now[12]} + 86400000 end,
    fingerprint = r.fingerprint,
    error = r.error,
    faults = case when r.fault is null then m.faults when m.faults is null then array[r.fault]
      when cardinality(m.faults) < 20 then m.faults || r.fault else m.faults[1:10] || m.faults[12:20] || r.fault end
  from unnest($1::uuid[], $2::int[], $3::bigint[], $4::text[], $5::bigint[], $6::boolean[], $7::boolean[], $8::text[], $9::text[], $10::text[], $11::text[],
    $13::text[], $14::boolean[], $15::boolean[])
    r(id, fence, seq, lane, due_ms, counts, held, reason, fingerprint, error, fault, deferral, crashed, alone)
  where m.id = r.id and m.fence = r.fence and m.seq = r.seq and m.lane = 'leased' returning m.id, m.cancel{member[moved]}){counted[moved]}
select count(*), (array_agg(id) filter (where cancel))::text, case when count(*) < cardinality($1::uuid[]) then array_agg(id)::text end{batches}
from moved

-- name: held_now
-- $1 ids, $2 fences, $3 seqs: those that are the current claim, and whether a cancel was asked for. Locked until the end of the transaction.
select m.seq, m.fence, m.cancel is true from {s}.message m
where (m.id, m.fence, m.seq) in (select * from unnest($1::uuid[], $2::int[], $3::bigint[])) and m.lane = 'leased' order by m.id for no key update

-- name: extend
-- $1 ids, $2 fences, $3 seqs, $4 lease, $5 now, $6 whether each runs alone from now on
update {s}.message m set due_ms = {now[5]} + $4::bigint, suspect = case when $6::boolean then 2 else m.suspect end
from (select * from unnest($1::uuid[], $2::int[], $3::bigint[]) r(id, fence, seq) order by id) r
where m.id = r.id and m.fence = r.fence and m.seq = r.seq and m.lane = 'leased' returning m.seq, m.fence, m.cancel is true

-- name: lapse
-- $1 worker, $2 now, $3 a fault or null, which each of them keeps: all its leases end now. They have no owner from then on: a worker of that name that is killed
-- before it claimed them must not find them among what it had claimed and not started. They go before what was enqueued after them.
update {s}.message set due_ms = least({now[2]}, coalesce(life_ms, enqueued_ms)), worker = null,
  faults = case when $3::text is null then faults when faults is null then array[$3::text]
    when cardinality(faults) < 20 then faults || $3::text else faults[1:10] || faults[12:20] || $3::text end
where due_ms is not null and lane = 'leased' and worker = $1::text returning queue, due_ms

-- name: give_back
-- $1 worker, $2 ids and $3 fences that stay leased: the others were never started, $4 now
update {s}.message set lane = 'ready', due_ms = least({now[4]}, coalesce(life_ms, enqueued_ms)), attempt = attempt - 1,
  suspect = case when suspect is not null then 1 end
where due_ms is not null and lane = 'leased' and worker = $1::text and (id, fence) not in (select * from unnest($2::uuid[], $3::int[]))
returning queue, due_ms

-- name: checkpoint
-- $1 ids, $2 fences and $3 seqs (one), $4 state
update {s}.message set progress = $4::bytea where id = any($1::uuid[]) and fence = any($2::int[]) and seq = any($3::bigint[]) and lane = 'leased' returning true

-- name: time
select floor(extract(epoch from clock_timestamp()) * 1000)::bigint

-- name: lanes
-- $1 ids
select id::text, lane, queue, grp from {s}.message where id = any($1::uuid[])

-- name: cancel
-- $1 ids, $2 now: what waits is done, what runs is asked to stop. One update for both: what is claimed or comes back while this waits for its row
-- is then the other of the two, and must not slip between them.
with moved as (
update {s}.message m set
  lane = case when m.lane = 'ready' then 'done' else m.lane end,
  cancel = case when m.lane = 'ready' then m.cancel else true end,
  due_ms = case when m.lane = 'leased' then m.due_ms end,
  turn = case when m.lane = 'leased' then m.turn end,
  place = case when m.lane = 'leased' then m.place end,
  wake_ms = case when m.lane = 'leased' then m.wake_ms end,
  reason = case when m.lane = 'ready' then 'cancelled' else m.reason end,
  deferral = case when m.lane = 'leased' then m.deferral end,
  rested_ms = case when m.lane = 'ready' then {now[2]} end,
  expires_ms = case when m.lane = 'ready' then {now[2]} + 86400000 end
from (select unnest($1::uuid[]) id order by 1) l where m.id = l.id and m.lane in ('ready', 'leased')
returning m.id::text, m.lane, m.batch, 'open' was, {state} now){count[moved]}
select id, lane from moved

-- name: redrive
-- $1 ids in order, $2 redrives, $3 lanes, $4 delays, $5 queue or null, $6 attempts or null, $7 run, $8 keep deadline, $9 now, $10 turns.
-- One of a group goes to the tail, by its turn, or stays the head that it was. What was done starts over. A run can take it back.
with numbered as materialized (
  select u.*, nextval('{s}.message_seq') seq from (
    select * from unnest($1::uuid[], $2::int[], $3::text[], $4::bigint[], $10::int[]) t(id, redrives, lane, delay_ms, turn) order by turn) u),
moved as (
update {s}.message m set
  before = case when $7::text is not null then {before} end,
  lane = 'ready', redrives = coalesce(m.redrives, 0) + 1, attempt = 0, crashes = null, crashes_alone = null, suspect = null, cancel = null,
  life_ms = {now[9]}, held_ms = null, attempts_allowed = $6::int, run = $7::text, deadline_ms = case when $8::boolean then m.deadline_ms end,
  reason = null, rested_ms = null, fingerprint = null, error = null, deferral = null, expires_ms = null, result = null,
  progress = case when m.lane <> 'done' then m.progress end, batch = case when m.lane <> 'done' then m.batch end,
  queue = coalesce($5::text, m.queue),
  due_ms = case when m.grp is null or r.head then {now[9]} + r.delay_ms end,
  place = case when r.head then m.place end,
  turn = case when m.grp is null or r.head then null when r.strict then r.seq when r.delay_ms = 0 then m.priority::bigint << 56 | r.seq end,
  wake_ms = case when m.grp is not null and not r.head and r.delay_ms > 0 then {now[9]} + r.delay_ms end,
  parked_ms = case when m.grp is not null and not r.head then {now[9]} end
from (
  select u.*, f.place is not null and ($5::text is null or $5::text = f.queue) head,
    exists (select from {s}.queue q where q.name = coalesce($5::text, f.queue) and q.group_order = 'strict') strict
  from (select * from numbered order by id) u join {s}.message f on f.id = u.id) r
where m.id = r.id and coalesce(m.redrives, 0) = r.redrives and m.lane = r.lane and (r.lane <> 'done' or m.reason is distinct from 'cancelled')
returning r.id::text, r.redrives, r.lane, m.batch, r.lane was, 'open' now){count[moved]}
select id, redrives, lane from moved

-- name: return
-- $1 ids in order, $2 redrives, $3 lanes, $4 run: what it moved, and no worker has run since, rests as it did before.
-- It leaves its group, unless it is still the head that blocks it. (`coalesce` keeps the planner off the index of runs.)
with moved as (
update {s}.message m set
  (queue, lane, redrives, reason, rested_ms, attempt, crashes, crashes_alone, suspect, life_ms, held_ms, deadline_ms, attempts_allowed,
    fingerprint, error, run, expires_ms, result, progress, place) = (
    select b.queue, b.lane, nullif(b.redrives, 0), b.reason, b.rested_ms, b.attempt, b.crashes, b.crashes_alone, b.suspect, b.life_ms,
      b.held_ms, b.deadline_ms, b.attempts_allowed, b.fingerprint, b.error, b.run, b.expires_ms, decode(b.result, 'hex'),
      case when b.lane = 'done' then decode(b.progress, 'hex') else m.progress end,
      case when b.blocked and b.queue = m.queue
        and exists (select from {s}.queue q where q.name = m.queue and q.group_order = 'strict' and q.on_dead = 'block') then m.place end
    from jsonb_to_record(m.before) b(queue text, lane text, redrives int, reason text, rested_ms bigint, attempt int, crashes int,
      crashes_alone int, suspect smallint, life_ms bigint, held_ms bigint, deadline_ms bigint, attempts_allowed int, fingerprint text,
      error text, run text, expires_ms bigint, result text, progress text, blocked boolean)),
  due_ms = null, turn = null, wake_ms = null, parked_ms = null, deferral = null, before = null
from unnest($1::uuid[], $2::int[], $3::text[]) r(id, redrives, lane)
where m.id = r.id and coalesce(m.redrives, 0) = r.redrives and m.lane = r.lane and coalesce(m.run, '') = $4::text
  and m.attempt = 0 and coalesce(m.crashes, 0) = 0 and (m.before ->> 'redrives')::int = r.redrives - 1
returning r.id::text, r.redrives, r.lane, m.batch, 'open' was, {state} now){count[moved]}
select id, redrives, lane from moved

-- name: hasten
-- $1 ids in order, $2 redrives, $3 lanes, $4 now. What is claimed meanwhile is not touched: it is not ready any more.
update {s}.message m set
  due_ms = case when m.due_ms > {now[4]} then {now[4]} else m.due_ms end,
  wake_ms = case when m.wake_ms > {now[4]} then {now[4]} else m.wake_ms end
from (select * from unnest($1::uuid[], $2::int[], $3::text[]) t(id, redrives, lane) order by id) r
where m.id = r.id and coalesce(m.redrives, 0) = r.redrives and m.lane = r.lane
returning r.id::text, r.redrives, r.lane

-- name: postpone
-- $1 ids in order, $2 redrives, $3 lanes, $4 fences or nulls, $5 dues as they were seen or nulls, $6 dues from now on; null: now. $7 run,
-- $8 whether to take back what it did, otherwise only what is due later is meant, $9 now. One of a group that is out of line joins again when it is due; a strict group keeps
-- the order.
update {s}.message m set
  due_ms = case when m.grp is null or (r.strict and m.place is not null) then coalesce(r.at_ms, {now[9]}) end,
  wake_ms = case when m.grp is not null and not (r.strict and m.place is not null) then coalesce(r.at_ms, {now[9]}) end,
  place = case when r.strict then m.place end, turn = case when r.strict then m.turn end,
  run = case when not $8::boolean then $7::text || case when m.attempt > 0 then '@' || m.attempt else '' end end
from (
  select t.*, exists (select from {s}.queue q where q.name = f.queue and q.group_order = 'strict') strict
  from (select * from unnest($1::uuid[], $2::int[], $3::text[], $4::bigint[], $5::bigint[], $6::bigint[])
    u(id, redrives, lane, fence, seen_ms, at_ms) order by id) t join {s}.message f on f.id = t.id) r
where m.id = r.id and coalesce(m.redrives, 0) = r.redrives and m.lane = r.lane and m.fence = coalesce(r.fence, m.fence)
  and (r.seen_ms is null or coalesce(m.due_ms, m.wake_ms) = r.seen_ms)
  and case when $8::boolean then split_part(coalesce(m.run, ''), '@', 1) = $7::text else coalesce(m.due_ms, m.wake_ms) > {now[9]} end
returning r.id::text, r.redrives, r.lane

-- name: edit
-- $1 ids in order, $2 redrives, $3 lanes, $4 fences, $5 dues, $6 queues, $7 priorities and $8 deadlines as they were seen, $9 queues,
-- $10 priorities, $11 deadlines and $12 dues from now on, a null each where none is said, a deadline 0 where there is none; $13 run, $14 whether
-- to take back what it did, $15 whether to cancel, $16 now. A key is locked first: a put may be about to take it.
with moved as (
update {s}.message m set
  queue = coalesce(r.queue, m.queue), priority = coalesce(r.priority, m.priority),
  deadline_ms = nullif(coalesce(r.deadline_ms, m.deadline_ms), 0),
  due_ms = case when not r.ends then coalesce(r.due_ms, m.due_ms) end,
  turn = case when r.ends then null
    when exists (select from {s}.queue q where q.name = m.queue and q.group_order = 'strict') then m.turn
    else (m.turn & 72057594037927935) | (coalesce(r.priority, m.priority) << 56) end,
  place = case when not r.ends then m.place end,
  wake_ms = case when not r.ends then m.wake_ms end, deferral = case when not r.ends then m.deferral end,
  lane = case when r.ends then 'done' else 'ready' end, reason = case when r.ends then 'cancelled' end,
  rested_ms = case when r.ends then {now[16]} end, expires_ms = case when r.ends then {now[16]} + 86400000 end,
  run = case when not $14::boolean then $13::text || case when m.attempt > 0 then '@' || m.attempt else '' end end
from (
  select *, $15::boolean and not $14::boolean ends from unnest($1::uuid[], $2::int[], $3::text[], $4::bigint[], $5::bigint[], $6::text[],
    $7::bigint[], $8::bigint[], $9::text[], $10::bigint[], $11::bigint[], $12::bigint[])
    u(id, redrives, lane, fence, seen_ms, was_queue, was_priority, was_deadline_ms, queue, priority, deadline_ms, due_ms) order by id) r
where m.id = r.id and coalesce(m.redrives, 0) = r.redrives and m.lane = r.lane and m.fence = coalesce(r.fence, m.fence)
  and (r.seen_ms is null or coalesce(m.due_ms, m.wake_ms) = r.seen_ms)
  and m.queue = coalesce(r.was_queue, m.queue) and m.priority = coalesce(r.was_priority, m.priority)
  and coalesce(m.deadline_ms, 0) = coalesce(r.was_deadline_ms, m.deadline_ms, 0)
  and (m.grp is null or (r.queue is null and r.due_ms is null))
  and (not $14::boolean or split_part(coalesce(m.run, ''), '@', 1) = $13::text)
  and (m.lane <> 'done' or (m.reason = 'cancelled' and m.grp is null and m.batch is null and (m.key is null or exists (
    select from {s}.unique_key k where k.task = m.task and k.key = m.key and k.id = m.id for no key update))))
returning r.id::text, r.redrives, r.lane, m.batch, 'open' was, {state} now){count[moved]}
select id, redrives, lane from moved

-- name: discard
-- $1 ids, $2 redrives, $3 lanes, $4 as what their batches count them from now on, or null
with gone as (
  delete from {s}.message m using unnest($1::uuid[], $2::int[], $3::text[]) r(id, redrives, lane)
  where m.id = r.id and coalesce(m.redrives, 0) = r.redrives and m.lane = r.lane
  returning m.id, r.redrives, r.lane, m.task, m.key, m.batch, r.lane was, $4::text now),
freed as (
  delete from {s}.unique_key k using (select * from gone where key is not null order by task, key) g
  where k.task = g.task and k.key = g.key and k.id = g.id and k.until_ms = 0){count[gone]}
select id::text, redrives, lane from gone

-- name: isolate
-- $1 ids in order, $2 redrives, $3 lanes, $4 reason, $5 now
with moved as (
update {s}.message m set lane = 'quarantine', reason = $4::text, rested_ms = {now[5]},
  before = case when m.lane = 'quarantine' then m.before else {before} end
from unnest($1::uuid[], $2::int[], $3::text[]) r(id, redrives, lane)
where m.id = r.id and coalesce(m.redrives, 0) = r.redrives and m.lane = r.lane
returning r.id::text, r.redrives, r.lane, m.batch, r.lane was, 'quarantine' now){count[moved]}
select id, redrives, lane from moved

-- name: readmit
-- $1 ids in order, $2 redrives, $3 lanes. What quarantined a message may be a text too long for the indexes of what is dead.
with moved as (
update {s}.message m set lane = 'dead', before = null,
  reason = case when (m.before ->> 'redrives')::int = coalesce(m.redrives, 0) then m.before ->> 'reason' else left(m.reason, 255) end
from unnest($1::uuid[], $2::int[], $3::text[]) r(id, redrives, lane)
where m.id = r.id and coalesce(m.redrives, 0) = r.redrives and m.lane = r.lane
returning r.id::text, r.redrives, r.lane, m.batch, r.lane was, 'dead' now){count[moved]}
select id, redrives, lane from moved

-- name: release_key
-- $1 task, $2 key, $3 id that holds it: takes it from it, and says until when it was to be held
delete from {s}.unique_key where task = $1::text and key = $2::text and id = $3::uuid returning until_ms

-- name: prolong_key
-- $1 task, $2 key, $3 until when it is held at least
update {s}.unique_key set until_ms = greatest(until_ms, $3::bigint) where task = $1::text and key = $2::text

-- name: restore
-- $1 ids, $2 tasks, $3 queues, $4 priorities, $5 lanes, $6 enqueued, $7 life, $8 rested, $9 held, $10 deadlines, $11 versions, $12 fences,
-- $13 attempts, $14 crashes, $15 crashes alone, $16 redrives, $17 attempts allowed, $18 suspects, $19 keys, $20 groups, $21 producers,
-- $22 workers, $23 reasons, $24 fingerprints, $25 errors, $26 faults as JSON, $27 metas, $28 progress, $29 bodies, $30 now, $31 batches
insert into {s}.message(id, seq, task, queue, priority, lane, enqueued_ms, life_ms, rested_ms, held_ms, deadline_ms, version, fence, attempt,
  crashes, crashes_alone, redrives, attempts_allowed, suspect, key, grp, producer, worker, reason, fingerprint, error, faults, meta, progress, body,
  batch)
select r.id, nextval('{s}.message_seq'), r.task, r.queue, r.priority, r.lane, r.enqueued_ms, r.life_ms, coalesce(r.rested_ms, {now[30]}),
  r.held_ms, r.deadline_ms, r.version, r.fence, r.attempt, nullif(r.crashes, 0), nullif(r.crashes_alone, 0), nullif(r.redrives, 0),
  r.attempts_allowed::int, case when r.suspect then 1 end, r.key, r.grp, r.producer, r.worker, r.reason, r.fingerprint, r.error,
  (select array_agg(f.value::text order by f.n) from json_array_elements(r.faults::json) with ordinality f(value, n)), r.meta, r.progress, r.body,
  r.batch
from unnest($1::uuid[], $2::text[], $3::text[], $4::int[], $5::text[], $6::bigint[], $7::bigint[], $8::bigint[], $9::bigint[],
  $10::bigint[], $11::bigint[], $12::int[], $13::int[], $14::int[], $15::int[], $16::int[], $17::text[], $18::boolean[], $19::text[], $20::text[],
  $21::text[], $22::text[], $23::text[], $24::text[], $25::text[], $26::text[], $27::text[], $28::bytea[], $29::bytea[], $31::text[])
  r(id, task, queue, priority, lane, enqueued_ms, life_ms, rested_ms, held_ms, deadline_ms, version, fence, attempt, crashes, crashes_alone,
  redrives, attempts_allowed, suspect, key, grp, producer, worker, reason, fingerprint, error, faults, meta, progress, body, batch)
on conflict (id) do nothing returning id::text

-- name: find
-- $1 ids
select {columns} from {s}.message m where id = any($1::uuid[])

-- name: ids_from
-- $1 and $2 the first and the last, $3 how many
select id::text from {s}.message where id between $1::uuid and $2::uuid order by id limit $3::bigint

-- name: counts
-- $1 queue, $2 now: lane, how many, and of what is ready the longest due
select case when lane = 'leased' then lane when due_ms <= {now[2]} then 'ready' else 'scheduled' end, count(*), {now[2]} - min(greatest(due_ms, 0))
from {s}.message where due_ms is not null and queue = $1::text and priority between 0 and 3 group by 1
union all
select 'parked', count(*), null from {s}.message where turn is not null and queue = $1::text
union all
select case when wake_ms <= {now[2]} then 'ready' else 'scheduled' end, count(*), {now[2]} - min(greatest(wake_ms, 0))
from {s}.message where wake_ms is not null and turn is null and queue = $1::text group by 1
union all
select lane, count(*), null from {s}.message where rested_ms is not null and queue = $1::text group by lane

-- name: blocks
-- how long the table of messages is
select pg_relation_size('{s}.message') / current_setting('block_size')::int

-- name: due_sample
-- $1 bounds, $2 per cent of the table's blocks: [queue, which span, how many of its messages lie in them, how many of these have failed before]
select queue, (width_bucket(at_ms - 1, $1::bigint[]) - 1)::int, count(*), count(*) filter (where attempt > 0) from (
  select queue, attempt, coalesce(due_ms, wake_ms) at_ms from {s}.message tablesample system ($2::float8)
  where lane = 'ready' and (due_ms is not null or (wake_ms is not null and turn is null))) waiting
group by 1, 2

-- name: due_counts
-- $1 queue, $2 bounds: how many come due between them, and how many of these have failed before, each from an index alone
select coalesce(sum(every), 0)::bigint, coalesce(sum(retries), 0)::bigint from (
  select n, lag(high) over (order by n) low, high from unnest($2::bigint[]) with ordinality bound(high, n)) span
left join lateral (
  select count(*) every, 0 retries from {s}.message m, generate_series(0, 3) p(priority)
  where m.queue = $1::text and m.priority = p.priority and due_ms > low and due_ms <= high and lane = 'ready'
  union all
  select 0, count(*) from {s}.message m, generate_series(0, 3) p(priority)
  where m.queue = $1::text and m.priority = p.priority and due_ms > low and due_ms <= high and lane between 'ready' and 'ready' and attempt > 0
  union all
  select count(*), count(*) filter (where attempt > 0) from {s}.message
  where queue = $1::text and wake_ms > low and wake_ms <= high and turn is null) counts on true
where low is not null group by n order by n

-- name: counts_by_queue
-- $1 now; a pass over each index that holds all of a lane, whatever the number of queues
select queue, coalesce({now[1]} - min(oldest), 0), sum(ready)::bigint, sum(scheduled)::bigint, sum(leased)::bigint, sum(dead)::bigint,
  sum(quarantine)::bigint, sum(done)::bigint, sum(parked)::bigint from (
  select queue,
    count(*) filter (where lane = 'ready' and due_ms <= {now[1]}) ready,
    count(*) filter (where lane = 'ready' and due_ms > {now[1]}) scheduled,
    count(*) filter (where lane = 'leased') leased,
    0 dead, 0 quarantine, 0 done,
    min(greatest(due_ms, 0)) filter (where lane = 'ready' and due_ms <= {now[1]}) oldest, 0 parked
  from {s}.message where due_ms is not null group by queue
  union all select queue, 0, 0, 0, 0, 0, 0, null, count(*) from {s}.message where turn is not null group by queue
  union all select queue, count(*) filter (where wake_ms <= {now[1]}), count(*) filter (where wake_ms > {now[1]}), 0, 0, 0, 0,
    min(greatest(wake_ms, 0)) filter (where wake_ms <= {now[1]}), 0
  from {s}.message where wake_ms is not null and turn is null group by queue
  union all select queue, 0, 0, 0, count(*) filter (where lane = 'dead'), count(*) filter (where lane = 'quarantine'),
    count(*) filter (where lane = 'done'), null, 0 from {s}.message where rested_ms is not null group by queue
  union all select name, 0, 0, 0, 0, 0, 0, null, 0 from {s}.queue) counts
group by queue

-- name: queues
-- From one queue to the next in each index: however many messages there are, as many steps as queues.
with recursive
  due(queue) as (
    (select queue from {s}.message where due_ms is not null order by queue limit 1)
    union all select (select m.queue from {s}.message m where due_ms is not null and m.queue > due.queue order by m.queue limit 1)
    from due where due.queue is not null
  ),
  line(queue) as (
    (select queue from {s}.message where turn is not null order by queue limit 1)
    union all select (select m.queue from {s}.message m where turn is not null and m.queue > line.queue order by m.queue limit 1)
    from line where line.queue is not null
  ),
  woken(queue) as (
    (select queue from {s}.message where wake_ms is not null and turn is null order by queue limit 1)
    union all select (select m.queue from {s}.message m where wake_ms is not null and turn is null and m.queue > woken.queue order by m.queue limit 1)
    from woken where woken.queue is not null
  ),
  rest(queue) as (
    (select queue from {s}.message where rested_ms is not null order by queue limit 1)
    union all select (select m.queue from {s}.message m where rested_ms is not null and m.queue > rest.queue order by m.queue limit 1)
    from rest where rest.queue is not null
  )
select queue from (
  select queue from due union select queue from line union select queue from woken union select queue from rest
  union select name from {s}.queue
) q where queue is not null

-- name: failure_groups
-- Its source is dead messages m; its trend, how many of them came to rest lately, and in the while before.
select g.fingerprint, g.task, m.error, array_to_string(m.faults, ','), g.count, g.first_ms, g.last_ms, g.sample, g.recent, g.earlier from (
  select coalesce(m.fingerprint, '') fingerprint, m.task, count(*) count, min(m.rested_ms) first_ms, max(m.rested_ms) last_ms,
    max(m.id::text collate "C") sample, {{trend}}
  from {{source}} group by 1, 2) g(fingerprint, task, count, first_ms, last_ms, sample, recent, earlier)
join {s}.message m on m.id = g.sample::uuid order by g.count desc, g.fingerprint, g.task

-- name: sweep
-- $1 now: forget what was kept long enough
with gone as (
  delete from {s}.message where ctid = any (array (
    select ctid from {s}.message where expires_ms < {now[1]} order by expires_ms limit 1000 for update skip locked))
  returning id, task, key),
freed as (
  delete from {s}.unique_key k using (select * from gone where key is not null order by task, key) g
  where k.task = g.task and k.key = g.key and k.id = g.id and k.until_ms = 0)
select count(*) from gone

-- name: sweep_keys
-- $1 now, $2 time up to which the last sweep looked: removes, of some keys whose time is over, those that no message has. Gives how many, and the
-- time to go on from, null after the last.
with looked as materialized (
  select task, key, id, until_ms from {s}.unique_key where until_ms > 0 and until_ms > $2::bigint and until_ms <= {now[1]}
  order by until_ms fetch first 5000 rows with ties),
gone as (
  delete from {s}.unique_key where ctid = any (array (
    select k.at from looked l, lateral (
      select ctid as at from {s}.unique_key k where k.task = l.task and k.key = l.key and k.id = l.id and k.until_ms = l.until_ms
        and not exists (select from {s}.message m where m.id = k.id) for update skip locked) k)) returning 1)
select (select count(*) from gone), (select max(until_ms) from looked having count(*) >= 5000)

-- name: sweep_cells
-- $1 now
with gone as (
  delete from {s}.cell where ctid = any (array (
    select ctid from {s}.cell where sweep_ms <= {now[1]} order by sweep_ms limit 1000 for update skip locked)) returning 1)
select count(*) from gone

-- name: sweep_lines
-- $1 queue and $2 name up to which the last sweep looked: removes, of some groups' rows, those that are unlocked and hold no setting. (A message
-- that joins meanwhile creates it again.) Gives how many, and the place to go on from, null after the last.
with looked as materialized (
  select queue, name from {s}.line where (queue, name) > ($1::text, $2::text) order by queue, name limit 5000),
gone as (
  delete from {s}.line where ctid = any (array (
    select l.at from looked k, lateral (
      select ctid as at from {s}.line l where l.queue = k.queue and l.name = k.name and l.width is null and l.admitting is null
        and not exists (select from {s}.message m where m.queue = l.queue and m.grp = l.name and m.turn is not null)
        and not exists (select from {s}.message m where m.queue = l.queue and m.grp = l.name and m.place is not null)
      for update skip locked) l)) returning 1)
select (select count(*) from gone), l.queue, l.name
from (select 1) one left join (select queue, name from looked order by queue, name offset 4999 limit 1) l on true

-- name: nth_newest
-- $1 lane, $2 queue, $3 n from 0
select rested_ms, seq from {s}.message where lane = $1::text and rested_ms is not null and queue = $2::text
order by rested_ms desc, seq desc limit 1 offset $3::int

-- name: going
-- $1 lane, $2 queue, $3 rested and $4 seq or null, $5 an age or null, $6 now: what is older than either, the longest at rest first.
-- Both as one bound, so that it ends where they begin that stay.
select id::text, grp, place is not null, rested_ms from {s}.message where lane = $1::text and rested_ms is not null and queue = $2::text
  and (rested_ms, seq) < (greatest($3::bigint, {now[6]} - $5::bigint),
    case when {now[6]} - $5::bigint > $3::bigint then 0 else coalesce($4::bigint, 0) end)
order by rested_ms, seq limit 1000

-- name: retain
-- $1 ids, $2 since when each rests, $3 lane: not what was redriven since, and came back to rest.
-- (`coalesce` keeps the planner off the indexes of all that rests)
with gone as (
  delete from {s}.message m using (select * from unnest($1::uuid[], $2::bigint[]) r(id, rested_ms) order by id) r
  where m.id = r.id and m.lane = $3::text and coalesce(m.rested_ms, -1) = r.rested_ms returning m.id, m.task, m.key,
    m.batch, $3::text was, case when $3::text = 'done' then 'done' else 'discarded' end now),
freed as (
  delete from {s}.unique_key k using (select * from gone where key is not null order by task, key) g
  where k.task = g.task and k.key = g.key and k.id = g.id and k.until_ms = 0){count[gone]}
select count(*) from gone

-- name: settings
-- $1 queue, with the group up to which those who are parked were admitted since the last change
select paused, group_width, group_order, on_dead, (select admitting from {s}.line where queue = $1::text and name = '')
from {s}.queue where name = $1::text

-- name: paused
select name from {s}.queue where paused

-- name: configure
-- $1 queue, $2 paused, $3 width, $4 order, $5 what a death does; null leaves it
insert into {s}.queue as q (name, paused, group_width, group_order, on_dead)
values ($1::text, coalesce($2::boolean, false), $3::int, $4::text, $5::text)
on conflict (name) do update set paused = coalesce($2::boolean, q.paused), group_width = coalesce($3::int, q.group_width),
  group_order = coalesce($4::text, q.group_order), on_dead = coalesce($5::text, q.on_dead)

-- name: group_settings
-- $1 queue: the width of its groups, their order, what a death does, and whether a group has a width of its own other than 1
select coalesce((select width from {s}.line where queue = $1::text and name = ''), q.group_width, 1), coalesce(q.group_order, 'turns'),
  coalesce(q.on_dead, 'skip'), exists (select from {s}.line where queue = $1::text and name > '' and width <> 1)
from (select 1) one left join {s}.queue q on q.name = $1::text

-- name: set_group_width
-- $1 queue, $2 group, $3 width or null
insert into {s}.line(queue, name, width) values ($1::text, $2::text, $3::int) on conflict (queue, name) do update set width = excluded.width

-- name: lock_queue
-- $1 queue: exclusive, to change how its groups are served
select pg_advisory_xact_lock(hashtextextended('{s} ' || $1::text, 0))

-- name: lock_queues
-- $1 queues, sorted: shared, to go by how their groups are served
select count(pg_advisory_xact_lock_shared(hashtextextended('{s} ' || queue, 0))) from unnest($1::text[]) queue

-- name: lock
-- $1 queues and $2 groups that change, $3 queues in which to wake, $4 how many each, $5 now, $6 from when on they may wait there. Makes the rows of these groups, or locks
-- them, in one order for everybody. What follows sees what those who had them before have committed.
insert into {s}.line as l (queue, name) select queue, name from (
  select * from unnest($1::text[], $2::text[]) g(queue, name)
  union
  select w.queue, late.grp from unnest($3::text[], $4::int[], $6::bigint[]) w(queue, many, low_ms) cross join lateral (
    select grp from {s}.message m where m.queue = w.queue and wake_ms >= w.low_ms and wake_ms <= {now[5]} and turn is null and grp is not null
    order by wake_ms, seq limit w.many) late
  ) touched order by queue collate "C", name collate "C"
on conflict (queue, name) do update set width = l.width where false

-- name: regroup
-- $1 ids, $2 now: what was settled keeps its place if its wait has no length, or if its group is strict and it is neither done nor skipped
-- (`coalesce` keeps the planner off the index of all places)
update {s}.message m set
  place = case when m.lane = 'ready' and (m.due_ms <= {now[2]} or r.strict) then m.place
    when m.lane in ('dead', 'quarantine') and r.block then m.place end,
  wake_ms = case when m.lane = 'ready' and m.due_ms > {now[2]} and not r.strict then m.due_ms end,
  due_ms = case when m.lane = 'ready' and m.due_ms > {now[2]} and not r.strict then null else m.due_ms end
from (
  select u.id, coalesce(q.group_order = 'strict', false) strict, coalesce(q.group_order = 'strict' and q.on_dead = 'block', false) block
  from unnest($1::uuid[]) u(id) join {s}.message f on f.id = u.id left join {s}.queue q on q.name = f.queue) r
where m.id = r.id and coalesce(m.place, -1) >= 0 and m.lane <> 'leased'

-- name: wake
-- $1 queue, $2 limit, $3 now, $4 from when on they may wait: those whose wait is over join their lines, the longest due first. Only in groups that
-- are locked, and who they are is kept for `admit`, which comes in the same round trip. (`coalesce` keeps the planner off the index of all who wait.)
with late as materialized (
  select id, grp, priority from {s}.message where queue = $1::text and wake_ms >= $4::bigint and wake_ms <= {now[3]} and turn is null
  order by wake_ms, seq limit $2::int),
locked as materialized (
  select name from {s}.line where queue = $1::text and name in (select grp from late) for no key update skip locked),
numbered as materialized (
  select id, priority, nextval('{s}.message_seq') seq from late where grp in (select name from locked)),
parked as (
  update {s}.message m set wake_ms = null, parked_ms = {now[3]},
    turn = case when exists (select from {s}.queue where name = $1::text and group_order = 'strict') then n.seq
      else n.priority::bigint << 56 | n.seq end
  from numbered n where m.id = n.id and m.queue = $1::text and coalesce(m.wake_ms, 9223372036854775807) <= {now[3]} and m.turn is null returning m.grp)
select set_config('redrive.woken', coalesce((select array_agg(distinct grp) from parked)::text, '{{}}'), true)

-- name: admit
-- $1 queues and $2 groups, $3 now, $4 a queue whose woken groups are meant too, or null, $5 how many of each group at most: gives the free places
-- of these groups to those who are parked, in their order. The time that they were parked is time that they were held. A group with a place for each who is admitted,
-- by number: the unique index on places allows each one once, whatever goes wrong.
with touched as (
  select * from unnest($1::text[], $2::text[]) g(queue, name)
  union
  select $4::text, unnest(nullif(current_setting('redrive.woken', true), '')::text[]) where $4::text is not null),
room as materialized (
  select g.*, w.width, w.width - (select count(*) from {s}.message m where m.queue = g.queue and m.grp = g.name and m.place is not null) free
  from touched g left join {s}.line l on l.queue = g.queue and l.name = g.name left join {s}.queue q on q.name = g.queue
  cross join lateral (select coalesce(l.width, (select a.width from {s}.line a where a.queue = g.queue and a.name = ''), q.group_width, 1) width) w),
next as materialized (
  select r.*, array(select m.id from {s}.message m where m.queue = r.queue and m.grp = r.name and m.turn is not null
    order by m.turn limit least(greatest(r.free, 0), $5::int)) ids from room r where r.free > 0),
seats as materialized (
  select n.ids, array(select s.place from (select generate_series(0, n.width - 1) place) s
    where not exists (select from {s}.message m where m.queue = n.queue and m.grp = n.name and m.place = s.place)
    limit cardinality(n.ids)) places from next n where cardinality(n.ids) > 0),
seated as materialized (select p.id, p.place from seats s cross join lateral unnest(s.ids, s.places) p(id, place))
update {s}.message m set place = p.place, turn = null, due_ms = greatest({now[3]}, m.wake_ms), wake_ms = null, parked_ms = null,
  held_ms = nullif(coalesce(m.held_ms, 0) + greatest(0, {now[3]} - greatest(coalesce(m.parked_ms, {now[3]}), m.wake_ms)), 0)
from seated p where m.id = p.id

-- name: reorder
-- $1 queue, $2 strict: who stands in line stands there by the other order now; the low 56 bits are the number he joined by
update {s}.message set turn = (turn & 72057594037927935) | case when $2::boolean then 0 else priority::bigint << 56 end
where queue = $1::text and turn is not null

-- name: unpark_waiting
-- $1 queue, $2 now: of a queue that is strict no more, those whose time has not come
update {s}.message set turn = null where queue = $1::text and turn is not null and wake_ms > {now[2]}

-- name: give_way
-- $1 queue, $2 now: of a queue that is strict no more, heads that kept their place through a wait
update {s}.message set place = null, wake_ms = due_ms, due_ms = null
where queue = $1::text and place is not null and lane = 'ready' and due_ms > {now[2]}

-- name: unblock
-- $1 queue: no dead head holds a group here any more
update {s}.message set place = null where queue = $1::text and place is not null and rested_ms is not null

-- name: begin_admitting
-- $1 queue
insert into {s}.line(queue, name, admitting) values ($1::text, '', '') on conflict (queue, name) do update set admitting = ''

-- name: admitting
-- $1 queue: the group up to which those who are parked were admitted, and the width of groups. Locked: each step is taken by one.
select admitting, coalesce(width, (select group_width from {s}.queue where name = $1::text), 1)
from {s}.line where queue = $1::text and name = '' and admitting is not null for no key update

-- name: admitted_to
-- $1 queue, $2 group, or null when all were looked at
update {s}.line set admitting = $2::text where queue = $1::text and name = ''

-- name: queues_admitting
select queue from {s}.line where admitting is not null

-- name: parked_groups
-- $1 queue, $2 group, $3 how many: the next groups by name in which a message is parked. One look into the index for each, however many are.
with recursive next as (
  (select grp, 1 n from {s}.message where queue = $1::text and grp > $2::text and turn is not null order by grp limit 1)
  union all
  select later.grp, next.n + 1 from next cross join lateral (
    select grp from {s}.message where queue = $1::text and grp > next.grp and turn is not null order by grp limit 1) later
  where next.n < $3::int)
select grp from next

-- name: resume
-- $1 queue, $2 group
update {s}.message set place = null where queue = $1::text and grp = $2::text and place is not null and rested_ms is not null

-- name: groups
-- $1 queue, $2 width
select m.grp, coalesce(l.width, $2::int), m.taken, m.parked, m.blocked from (
  select grp, count(place) taken, count(turn) parked, max(id::text) filter (where place is not null and rested_ms is not null) blocked
  from (select grp, place, turn, id, rested_ms from {s}.message where queue = $1::text and place is not null
    union all select grp, place, turn, id, rested_ms from {s}.message where queue = $1::text and turn is not null) s group by grp) m
  left join {s}.line l on l.queue = $1::text and l.name = m.grp
union all
select name, width, 0, 0, null from {s}.line l where queue = $1::text and name > '' and width is not null
  and not exists (select from {s}.message where queue = $1::text and grp = l.name and place is not null)
  and not exists (select from {s}.message where queue = $1::text and grp = l.name and turn is not null)
order by 1

-- name: odd_settings
-- what no version of ours writes: queue, group or '', setting, value
select name, '', 'group_width', group_width::text from {s}.queue where group_width < 1
union all select name, '', 'group_order', group_order from {s}.queue where group_order not in ('turns', 'strict')
union all select name, '', 'on_dead', on_dead from {s}.queue where on_dead not in ('skip', 'block')
union all select queue, name, 'width', width::text from {s}.line where width < 1 limit 20

-- name: stuck_groups
-- groups in which a message is parked though a place is free, and such that have more places taken than there are
select p.queue, p.grp from (select distinct queue, grp from {s}.message where turn is not null) p
left join {s}.line l on l.queue = p.queue and l.name = p.grp left join {s}.queue q on q.name = p.queue
where (select count(*) from {s}.message m where m.queue = p.queue and m.grp = p.grp and m.place is not null)
  < coalesce(l.width, (select a.width from {s}.line a where a.queue = p.queue and a.name = ''), q.group_width, 1)

-- name: set_aside
-- $1 ids, $2 fences, $3 why each cannot be read, $4 in which columns (names with commas), $5 now: claims that the claiming process cannot read
with moved as (
update {s}.message m set
  before = jsonb_build_object('damaged', to_jsonb(m) - 'before', 'why', r.why, 'wrong', r.wrong), lane = 'quarantine', reason = 'damaged',
  rested_ms = {now[5]}, due_ms = null, place = null, turn = null, wake_ms = null, parked_ms = null, deferral = null,
  meta = case when 'meta' <> all(string_to_array(r.wrong, ',')) then m.meta end,
  faults = case when 'faults' <> all(string_to_array(r.wrong, ',')) then m.faults end, fence = greatest(m.fence, 0),
  attempt = greatest(m.attempt, 0), crashes = case when m.crashes >= 0 then m.crashes end, crashes_alone = case when m.crashes_alone >= 0 then m.crashes_alone end,
  redrives = case when m.redrives >= 0 then m.redrives end, held_ms = case when m.held_ms >= 0 then m.held_ms end, attempts_allowed = case when m.attempts_allowed >= 0 then m.attempts_allowed end
from unnest($1::uuid[], $2::int[], $3::text[], $4::text[]) r(id, fence, why, wrong)
where m.id = r.id and m.fence = r.fence and m.lane = 'leased' returning m.batch, 'open' was, m.lane now){count[moved]}
select count(*) from moved

-- name: beyond
-- Messages to which nothing can be added: a counter or a time of theirs is at the end of its range. Their queues and groups.
select id::text, queue, grp from {s}.message where {beyond} limit 1000

-- name: set_aside_beyond
-- $1 ids, $2 now: they go to quarantine with numbers that can be counted on. Their rows as they were.
with moved as (
update {s}.message m set
  before = jsonb_build_object('damaged', to_jsonb(m) - 'before', 'why', 'a number of it is at the end of its range', 'wrong', ''),
  lane = 'quarantine', reason = 'damaged', rested_ms = {now[2]}, due_ms = null, place = null, turn = null, wake_ms = null, parked_ms = null,
  deferral = null, expires_ms = null, fence = least(greatest(m.fence, 0), 1000000000), attempt = least(greatest(m.attempt, 0), 1000000),
  crashes = case when m.crashes < 2147483647 then m.crashes end, crashes_alone = case when m.crashes_alone < 2147483647 then m.crashes_alone end, redrives = case when m.redrives < 2147483647 then m.redrives end,
  held_ms = case when m.held_ms < 4611686018427387904 then m.held_ms end, life_ms = case when m.life_ms between 0 and 4611686018427387904 then m.life_ms end,
  deadline_ms = case when m.deadline_ms between 0 and 4611686018427387904 then m.deadline_ms end,
  enqueued_ms = case when m.enqueued_ms between 0 and 4611686018427387904 then m.enqueued_ms else {now[2]} end
from (select m.id, {state} was from {s}.message m where m.id = any($1::uuid[]) order by m.id for no key update) r
where m.id = r.id and {beyond} returning m.id::text, m.batch, r.was, m.lane now){count[moved]}
select id from moved

-- name: kept_before
-- $1 ids: what rows were that were set aside
select id::text, before::text from {s}.message where id = any($1::uuid[]) and lane = 'quarantine' and reason = 'damaged' and before ? 'damaged'

-- name: repair
-- $1 id, $2 columns that cannot be read, $3 now: it rests dead, without them
with moved as (
update {s}.message m set lane = 'dead', reason = 'damaged', rested_ms = coalesce(m.rested_ms, {now[3]}), due_ms = null, place = null,
  turn = null, wake_ms = null, parked_ms = null, before = null, deferral = null,
  meta = case when 'meta' <> all($2::text[]) then m.meta end, faults = case when 'faults' <> all($2::text[]) then m.faults end,
  fence = greatest(m.fence, 0), attempt = greatest(m.attempt, 0), crashes = case when m.crashes >= 0 then m.crashes end,
  crashes_alone = case when m.crashes_alone >= 0 then m.crashes_alone end, redrives = case when m.redrives >= 0 then m.redrives end, held_ms = case when m.held_ms >= 0 then m.held_ms end,
  attempts_allowed = case when m.attempts_allowed >= 0 then m.attempts_allowed end
from (select m.id, {state} was from {s}.message m where m.id = $1::uuid for no key update) r
where m.id = r.id returning m.batch, r.was, m.lane now){count[moved]}
select count(*) from moved

-- name: put_back
-- $1 id, $2 now: it could never have been claimed
update {s}.message m set due_ms = {now[2]}, priority = least(greatest(m.priority, 0), 3),
  seq = case when m.seq < 0 then nextval('{s}.message_seq') else m.seq end where m.id = $1::uuid
  and m.lane in ('ready', 'leased') and m.rested_ms is null
  and (m.priority not between 0 and 3 or m.seq < 0 or (m.due_ms is null and m.turn is null and m.wake_ms is null)) returning m.queue

-- name: misplaced
-- messages that can become due and do not stand in a line, or rest and do, or have a priority that no claim looks at
select id::text, lane from {s}.message where priority not between 0 and 3 or seq < 0 or case when rested_ms is not null then lane in ('ready', 'leased') or due_ms is not null
  else lane not in ('ready', 'leased') or (due_ms is null and turn is null and wake_ms is null) end limit 100

-- name: about
select current_setting('server_version'), (select version from {s}.meta), (select sum(pg_total_relation_size(c.oid))::bigint
  from pg_class c join pg_namespace n on n.oid = c.relnamespace where n.nspname = '{s}' and c.relkind = 'r')

-- name: read_cells
-- $1 keys, $2 now
select key, version, value from {s}.cell where key = any($1::text[]) and value is not null and (expires_ms is null or expires_ms > {now[2]})

-- name: patience
-- $1 whether it is durable: a transaction that swaps cells waits for others half a second at most. Where it is not durable, what it commits may be lost in a
-- power cut, and is not by a killed process.
select set_config('lock_timeout', '500', true), case when not $1::boolean then set_config('synchronous_commit', 'off', true) end

-- name: swap_cells
-- $1 keys in order, none twice, $2 expected versions (0: there is none), $3 values, $4 times to live, $5 now: the keys of those that apply.
-- What is there is locked first, all of it in one order, by everybody. (`any (array[…])` leaves the planner no way but to look each key up.)
with asked as materialized (
  select a.*, coalesce(c.version, 0) actual, coalesce(c.live, false) live, c.version is not null there
  from unnest($1::text[], $2::bigint[], $3::bytea[], $4::bigint[]) a(key, version, value, ttl_ms) left join lateral (
    select version, value is not null and (expires_ms is null or expires_ms > {now[5]}) live from {s}.cell where key = a.key
    for no key update) c on true),
fits as materialized (select * from asked where version = case when live then actual else 0 end),
changed as (
  update {s}.cell c set version = 2 * nextval('{s}.message_seq'), value = f.value, expires_ms = {now[5]} + f.ttl_ms,
    sweep_ms = (({now[5]} + f.ttl_ms) / 60000 + 1) * 60000
  from fits f where c.key = any (array[f.key]) and f.there and f.value is not null returning c.key),
gone as (delete from {s}.cell c using fits f where c.key = any (array[f.key]) and f.there and f.value is null returning c.key),
made as (
  insert into {s}.cell(key, version, value, expires_ms, sweep_ms)
  select key, 2 * nextval('{s}.message_seq'), value, {now[5]} + ttl_ms, (({now[5]} + ttl_ms) / 60000 + 1) * 60000
  from fits where not there and value is not null on conflict (key) do nothing returning key)
select key from changed union all select key from gone union all select key from made
union all select key from fits where not there and value is null

-- name: lock_cells
-- $1 keys in order, $2 now: of those that are there, the version, or 0 where it has expired
select c.key, c.version from unnest($1::text[]) a(key) cross join lateral (
  select key, case when value is not null and (expires_ms is null or expires_ms > {now[2]}) then version else 0 end "version"
  from {s}.cell where key = a.key for no key update) c

-- name: change_cells
-- $1 keys that are locked, $2 values, $3 times to live, $4 now
update {s}.cell c set version = 2 * nextval('{s}.message_seq'), value = r.value, expires_ms = {now[4]} + r.ttl_ms,
  sweep_ms = (({now[4]} + r.ttl_ms) / 60000 + 1) * 60000
from unnest($1::text[], $2::bytea[], $3::bigint[]) r(key, value, ttl_ms) where c.key = any (array[r.key])

-- name: make_cells
-- $1 keys in order that were not there, $2 values, $3 times to live, $4 now. Where one came since, the whole transaction is tried again.
insert into {s}.cell(key, version, value, expires_ms, sweep_ms)
select key, 2 * nextval('{s}.message_seq'), value, {now[4]} + ttl_ms, (({now[4]} + ttl_ms) / 60000 + 1) * 60000
from unnest($1::text[], $2::bytea[], $3::bigint[]) r(key, value, ttl_ms)

-- name: drop_cells
-- $1 keys that are locked
delete from {s}.cell where key = any ($1::text[])

-- name: count
-- $1 batches, $2 what new members of theirs are, $3 how many
insert into {s}.batch_delta(batch, now, n) select * from unnest($1::text[], $2::text[], $3::int[])

-- name: batch_counts
-- $1 batches: the counts of each, and how many changes wait to be folded
select k.id, {totals}, d.waiting
from unnest($1::text[]) k(id) left join {s}.batch b on b.id = k.id
cross join lateral (select {sums}, count(*) waiting from {s}.batch_delta where batch = k.id) d

-- name: fold_all, fold
-- $1 how many at most or null, $2 of which batches: adds changes to the rows of their batches, but none that another adds now
with gone as (
  delete from {s}.batch_delta where ctid = any (array (
    select ctid from {s}.batch_delta{of_batches} limit $1::bigint for update skip locked)) returning *),
folded as (
  insert into {s}.batch as b (id, {fields}, changed) select batch, {sums}, true from gone group by batch order by batch
  on conflict (id) do update set {added}, changed = true, expires_ms = null)
select count(*) from gone

-- name: batch_ids
-- $1 after which id, $2 how many
select id from {s}.batch where id > $1::text
union select batch from {s}.batch_delta where batch > $1::text
order by id limit $2::bigint

-- name: failed_batches
-- $1 after which id, $2 how many: those of stored members that are dead or in quarantine, from one batch to the next in their index
with recursive failed(id) as (
  (select batch from {s}.message where batch > $1::text and lane in ('dead', 'quarantine') order by batch limit 1)
  union all
  select n.batch from failed f cross join lateral (
    select batch from {s}.message where batch > f.id and lane in ('dead', 'quarantine') order by batch limit 1) n)
select id from failed limit $2::bigint

-- name: changed_batches
-- $1 after which id, $2 how many: those with news (stores/batches.py). What waits to be folded is a change too.
with d as materialized (select batch, {sums} from {s}.batch_delta where batch > $1::text group by batch)
select id from (
  (select id from {s}.batch b where changed and id > $1::text and (open = 0 or dead + quarantine > 0)
    and not exists (select from {s}.batch_delta where batch = b.id) order by id limit $2::bigint)
  union all
  select d.batch from d left join {s}.batch b on b.id = d.batch
  where coalesce(b.open, 0) + d.open = 0 or coalesce(b.dead + b.quarantine, 0) + d.dead + d.quarantine > 0) news
order by id limit $2::bigint

-- name: mark_batches
-- $1 ids, $2 the counts of each as an array, $3 how long they are kept or null, $4 now
update {s}.batch b set changed = false, expires_ms = {now[4]} + r.keep_ms
from (select * from unnest($1::text[], $2::text[], $3::bigint[]) u(id, counts, keep_ms) order by id) r
where b.id = r.id and array[{fields}] = r.counts::bigint[]

-- name: sweep_batches
-- $1 now
with gone as (
  delete from {s}.batch where ctid = any (array (
    select ctid from {s}.batch b where expires_ms < {now[1]} and not exists (select from {s}.batch_delta where batch = b.id)
    order by expires_ms limit 1000 for update skip locked)) returning 1)
select count(*) from gone

-- name: miscounted
-- batches with other members than they count: id, count, how many it says, how many are stored
select id, field, said, stored from (
  select id, field, sum(said)::bigint said, sum(stored)::bigint stored, bool_or(bool_or(known)) over (partition by id) known from (
    select id, field, said, 0 stored, true known from {s}.batch b
      cross join lateral (values ('open', b.open), ('dead', b.dead), ('quarantine', b.quarantine)) c(field, said)
    union all select batch, now, n, 0, true from {s}.batch_delta
    union all select batch, was, -n, 0, true from {s}.batch_delta
    union all select batch, {state}, 0, count(*), false from {s}.message m where batch is not null group by 1, 2) every
  group by id, field) compared
where known and field in ('open', 'dead', 'quarantine') and said <> stored order by id, field
