ALTER TABLE "bundles" ADD COLUMN expected_sales DOUBLE PRECISION;
ALTER TABLE "bundles" ADD COLUMN sells_like VARCHAR COLLATE "C";
UPDATE bundlemage_version SET version_num='3' WHERE bundlemage_version.version_num = '2';
