ALTER TABLE "items" ADD COLUMN cost DOUBLE PRECISION;
ALTER TABLE "items" ADD COLUMN image_url TEXT;
ALTER TABLE "bundles" ADD COLUMN image_url TEXT;
UPDATE bundlemage_version SET version_num='4' WHERE bundlemage_version.version_num = '3';
