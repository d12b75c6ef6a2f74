BEGIN TRANSACTION;
CREATE TABLE counter (
    subject TEXT, family INTEGER, traffic TEXT,
    namespace TEXT, pod TEXT, uid TEXT,
    phase INTEGER NOT NULL, bytes INTEGER NOT NULL, packets INTEGER NOT NULL,
    PRIMARY KEY (subject, family, traffic)
) STRICT, WITHOUT ROWID;
INSERT INTO "counter" VALUES('10.128.16.0',4,'internet-in','research','stays','f6a05cd3-4bbd-42c3-aee9-8ac5e735774b',1,3280,10);
INSERT INTO "counter" VALUES('10.128.16.0',4,'internet-out','research','stays','f6a05cd3-4bbd-42c3-aee9-8ac5e735774b',1,5280,10);
INSERT INTO "counter" VALUES('10.128.16.0',4,'protected-out','research','stays','f6a05cd3-4bbd-42c3-aee9-8ac5e735774b',1,0,0);
INSERT INTO "counter" VALUES('FORWARD',4,'internet-in',NULL,NULL,NULL,1,4264,13);
INSERT INTO "counter" VALUES('FORWARD',4,'internet-out',NULL,NULL,NULL,1,6864,13);
INSERT INTO "counter" VALUES('FORWARD',6,'internet-in',NULL,NULL,NULL,1,4524,13);
INSERT INTO "counter" VALUES('FORWARD',6,'internet-out',NULL,NULL,NULL,1,7124,13);
INSERT INTO "counter" VALUES('INPUT',4,'internet-in',NULL,NULL,NULL,1,0,0);
INSERT INTO "counter" VALUES('INPUT',6,'internet-in',NULL,NULL,NULL,1,0,0);
INSERT INTO "counter" VALUES('OUTPUT',4,'internet-out',NULL,NULL,NULL,1,0,0);
INSERT INTO "counter" VALUES('OUTPUT',6,'internet-out',NULL,NULL,NULL,1,0,0);
INSERT INTO "counter" VALUES('fd00:128:0:1::',6,'internet-in','research','stays','f6a05cd3-4bbd-42c3-aee9-8ac5e735774b',1,3480,10);
INSERT INTO "counter" VALUES('fd00:128:0:1::',6,'internet-out','research','stays','f6a05cd3-4bbd-42c3-aee9-8ac5e735774b',1,5480,10);
INSERT INTO "counter" VALUES('fd00:128:0:1::',6,'protected-out','research','stays','f6a05cd3-4bbd-42c3-aee9-8ac5e735774b',1,0,0);
CREATE TABLE ended (
    namespace TEXT, pod TEXT, since REAL NOT NULL, PRIMARY KEY (namespace, pod)
) STRICT, WITHOUT ROWID;
INSERT INTO "ended" VALUES('batch','gone',1.7954039532954728603e+09);
INSERT INTO "ended" VALUES('research','late',1.79540395339169740673e+09);
CREATE TABLE fact (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;
INSERT INTO "fact" VALUES('backends','nftables');
INSERT INTO "fact" VALUES('books','fd8d55bfdd3de088');
INSERT INTO "fact" VALUES('boot_id','0c0ffee0-0000-4000-8000-000000000000');
INSERT INTO "fact" VALUES('longest_pause','0.472');
INSERT INTO "fact" VALUES('policy','3fdda64c9ff7f1d9889d0948b3330b592cee1a11b03ba83d1279391e3ca76999');
INSERT INTO "fact" VALUES('read_at_steady','7509.353');
INSERT INTO "fact" VALUES('sequence','12');
CREATE TABLE gap (
    reason TEXT PRIMARY KEY, count INTEGER NOT NULL, seconds REAL NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;
CREATE TABLE hour (
    hour INTEGER, namespace TEXT, pod TEXT, traffic TEXT,
    bytes INTEGER NOT NULL, packets INTEGER NOT NULL,
    PRIMARY KEY (hour, namespace, pod, traffic)
) STRICT, WITHOUT ROWID;
INSERT INTO "hour" VALUES(498723,'batch','gone','internet-in',2028,6);
INSERT INTO "hour" VALUES(498723,'batch','gone','internet-out',3228,6);
INSERT INTO "hour" VALUES(498723,'research','stays','internet-in',6760,20);
INSERT INTO "hour" VALUES(498723,'research','stays','internet-out',10760,20);
CREATE TABLE total (
    scope TEXT, owner TEXT, name TEXT, traffic TEXT,
    bytes INTEGER NOT NULL, packets INTEGER NOT NULL,
    PRIMARY KEY (scope, owner, name, traffic)
) STRICT, WITHOUT ROWID;
INSERT INTO "total" VALUES('audit','forward','counted','internet-in',8788,26);
INSERT INTO "total" VALUES('audit','forward','counted','internet-out',13988,26);
INSERT INTO "total" VALUES('audit','forward','counted','protected-out',0,0);
INSERT INTO "total" VALUES('hook','FORWARD','4','internet-in',4264,13);
INSERT INTO "total" VALUES('hook','FORWARD','4','internet-out',6864,13);
INSERT INTO "total" VALUES('hook','FORWARD','6','internet-in',4524,13);
INSERT INTO "total" VALUES('hook','FORWARD','6','internet-out',7124,13);
INSERT INTO "total" VALUES('hook','INPUT','4','internet-in',0,0);
INSERT INTO "total" VALUES('hook','INPUT','6','internet-in',0,0);
INSERT INTO "total" VALUES('hook','OUTPUT','4','internet-out',0,0);
INSERT INTO "total" VALUES('hook','OUTPUT','6','internet-out',0,0);
INSERT INTO "total" VALUES('namespace','batch','','internet-in',2028,6);
INSERT INTO "total" VALUES('namespace','batch','','internet-out',3228,6);
INSERT INTO "total" VALUES('namespace','batch','','protected-out',0,0);
INSERT INTO "total" VALUES('namespace','research','','internet-in',6760,20);
INSERT INTO "total" VALUES('namespace','research','','internet-out',10760,20);
INSERT INTO "total" VALUES('namespace','research','','protected-out',0,0);
INSERT INTO "total" VALUES('pod','batch','gone','internet-in',2028,6);
INSERT INTO "total" VALUES('pod','batch','gone','internet-out',3228,6);
INSERT INTO "total" VALUES('pod','batch','gone','protected-out',0,0);
INSERT INTO "total" VALUES('pod','research','late','internet-in',0,0);
INSERT INTO "total" VALUES('pod','research','late','internet-out',0,0);
INSERT INTO "total" VALUES('pod','research','late','protected-out',0,0);
INSERT INTO "total" VALUES('pod','research','stays','internet-in',6760,20);
INSERT INTO "total" VALUES('pod','research','stays','internet-out',10760,20);
INSERT INTO "total" VALUES('pod','research','stays','protected-out',0,0);
COMMIT;
PRAGMA user_version = 3;
