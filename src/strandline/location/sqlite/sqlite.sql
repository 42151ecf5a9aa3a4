-- The logs of all shards, in one table. A log is never empty once it began: its newest record is
-- what the next one is checked against, and is never removed.

-- name: create
CREATE TABLE record (
    shard TEXT NOT NULL,
    seqno INTEGER NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (shard, seqno)
);

-- name: identity
SELECT a.application_id, v.user_version, (SELECT count(*) FROM sqlite_master)
FROM pragma_application_id AS a, pragma_user_version AS v;

-- Of the newest records of the table those that the index, by which all else goes, does not have.
-- name: lost
SELECT CAST(newest.shard AS BLOB), newest.seqno
FROM (SELECT shard, seqno FROM record NOT INDEXED ORDER BY rowid DESC LIMIT ?1) AS newest
WHERE NOT EXISTS (
    SELECT 1 FROM record AS found INDEXED BY sqlite_autoindex_record_1
    WHERE found.shard = newest.shard AND found.seqno = newest.seqno
);

-- name: head
SELECT seqno, data FROM record WHERE shard = ?1 ORDER BY seqno DESC LIMIT 1;

-- The check and the change are one statement, and so one transaction: nobody comes between.
-- name: append
INSERT INTO record (shard, seqno, data)
SELECT ?1, ?2 + 1, ?3
WHERE ?2 = coalesce((SELECT max(seqno) FROM record WHERE shard = ?1), 0);

-- name: scan
SELECT seqno, data FROM record WHERE shard = ?1 AND seqno >= ?2 ORDER BY seqno LIMIT ?3;

-- A bite at a time and from the beginning, so that no append waits long and no gap shows.
-- name: truncate
DELETE FROM record WHERE rowid IN (
    SELECT rowid FROM record
    WHERE shard = ?1
        AND seqno < min(?2, (SELECT max(seqno) FROM record WHERE shard = ?1))
    ORDER BY seqno
    LIMIT ?3
);

-- Steps from shard to shard along the index; DISTINCT would read all records.
-- name: keys
WITH RECURSIVE step (shard) AS (
    SELECT min(shard) FROM record
    UNION ALL
    SELECT (SELECT min(record.shard) FROM record WHERE record.shard > step.shard)
    FROM step WHERE step.shard IS NOT NULL
)
SELECT shard FROM step WHERE shard IS NOT NULL;
