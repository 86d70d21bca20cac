"""One folder of tables for each way in which data can be broken, and exactly what is to be said about it."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pyarrow as pa

from tests.shop_files import BUNDLES, GOOD, ITEMS, parquet, with_files, with_parquet, write


def _folder_for_file(folder: Path) -> None:
    write(folder, user_item_csv=None)
    (folder / "user_item.csv").mkdir()


def _link_to_itself(folder: Path) -> None:
    # Not a file without permissions: for root, who runs many a container, every file has them.
    write(folder, user_item_csv=None)
    (folder / "user_item.csv").symlink_to("user_item.csv")


def _renamed(folder: Path) -> None:
    write(folder, user_item_csv=None)
    (folder / "User-Items.csv").write_text(GOOD["user_item.csv"])


def _files_beside(folder: Path) -> None:
    write(folder, reviews_csv="user_id,stars\nann,5\n")
    for name in (
        "orders.xlsx",
        "intent.json",
        "README.md",
        "LICENSE.txt",
        ".hidden.csv",
        "_SUCCESS",
        "logo.png",
    ):
        (folder / name).write_text("x")


def _photos(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "holiday.jpg").write_bytes(b"\xff\xd8")


def _plain_file(path: Path) -> None:
    path.write_text("a file")


def _nothing(_: Path) -> None:
    pass


_PAIRS = {"user_id": pa.array(["ann", "bob"] * 500), "item_id": pa.array(["i1", "i2"] * 500)}
_TABLES = (
    "Give a folder with the tables user_item, user_bundle, bundle_item "
    "(each as .csv, .tsv, .csv.gz, .tsv.gz or .parquet)"
)


@dataclass(frozen=True)
class Broken:
    """A kind of broken data. `{path}` in the message stands for the folder."""

    write: Callable[[Path], None]
    kind: str
    message: str
    severity: Literal["error", "warning"] = "error"


BROKEN: dict[str, Broken] = {
    "no such folder": Broken(
        _nothing, "no-such-path", "{path}: there is no such file or folder. Check the path"
    ),
    "a folder of other things": Broken(
        _photos,
        "not-a-dataset",
        "{path}: none of the tables is in this folder; it holds holiday.jpg. " + _TABLES,
    ),
    "a file for the folder": Broken(
        _plain_file, "not-a-dataset", "{path}: this is a file, not a folder of tables. " + _TABLES
    ),
    "a table missing": Broken(
        with_files(bundle_item_csv=None),
        "missing-file",
        "bundle_item.csv: the table 'bundle_item' is missing. Put bundle_item.csv (or .tsv, .csv.gz, "
        ".tsv.gz, .parquet) in the folder, with the columns bundle_id and item_id",
    ),
    "no table of single items": Broken(
        with_files(user_item_csv=None),
        "missing-file",
        "user_item.csv: the table 'user_item' is missing. Put user_item.csv (or .tsv, .csv.gz, .tsv.gz, "
        ".parquet) in the folder, with the columns user_id and item_id; if users buy no single items, "
        "write only these column names into it",
    ),
    "a table under a wrong name": Broken(
        _renamed,
        "missing-file",
        "user_item.csv: the table 'user_item' is missing. Put user_item.csv (or .tsv, .csv.gz, .tsv.gz, "
        ".parquet) in the folder, with the columns user_id and item_id; if it is 'User-Items.csv', rename it",
    ),
    "a table twice": Broken(
        with_files(user_item_tsv="user_id\titem_id\nann\ti1\n"),
        "ambiguous-file",
        "user_item.csv: the table 'user_item' exists more than once: user_item.csv and user_item.tsv. "
        "Keep one of them",
    ),
    "an empty file": Broken(
        with_files(user_item_csv=""),
        "empty-file",
        "user_item.csv: the file is empty. Export the data again",
    ),
    "an empty gzip": Broken(
        with_files(user_item_csv=None, user_item_csv_gz=gzip.compress(b"")),
        "empty-file",
        "user_item.csv.gz: the file is empty. Export the data again",
    ),
    "a header alone": Broken(
        with_files(user_bundle_csv="user_id,bundle_id"),
        "no-rows",
        "user_bundle.csv: there are column names but no rows. "
        "Export the data again; a model learns from these rows",
    ),
    "a folder for a file": Broken(
        _folder_for_file,
        "not-a-file",
        "user_item.csv: this is a folder, not a file. Put the table there as a single file",
    ),
    "a file that does not open": Broken(
        _link_to_itself,
        "unreadable",
        "user_item.csv: the file cannot be read: Too many levels of symbolic links. "
        "Check that it exists, that you may read it, and that it opens in another program",
    ),
    "semicolons in a CSV": Broken(
        with_files(user_item_csv="user_id;item_id\nann;i1\n"),
        "wrong-delimiter",
        "user_item.csv:1: the columns are separated by semicolons, not commas: 'user_id;item_id'. "
        "Save it with commas",
    ),
    "semicolons, and a comma in a name": Broken(
        with_files(items_csv="item_id;title, long;price\ni1;Frost;1\n"),
        "wrong-delimiter",
        "items.csv:1: the columns are separated by semicolons, not commas: 'item_id;title, long;price'. "
        "Save it with commas",
    ),
    "tabs in a CSV": Broken(
        with_files(user_item_csv="user_id\titem_id\nann\ti1\n"),
        "wrong-delimiter",
        "user_item.csv:1: the columns are separated by tabs, not commas: 'user_id\\titem_id'. "
        "Save it with commas, or name it .tsv",
    ),
    "commas in a TSV": Broken(
        with_files(user_item_csv=None, user_item_tsv="\nuser_id,item_id\nann,i1\n"),
        "wrong-delimiter",
        "user_item.tsv:2: the columns are separated by commas, not tabs: 'user_id,item_id'. "
        "Save it with tabs, or name it .csv",
    ),
    "an unknown column": Broken(
        with_files(user_item_csv="user_id,thing\nann,i1\n"),
        "unknown-column",
        "user_item.csv: no column 'item_id'; the columns are 'user_id', 'thing'. "
        "Rename the column with these ids to 'item_id'",
    ),
    "no header": Broken(
        with_files(user_item_csv="17,4\n17,5\n"),
        "unknown-column",
        "user_item.csv: no column 'user_id' or 'item_id'; the columns are '17', '4'. "
        "The first line looks like data: put a line with the column names above it",
    ),
    "two columns for one": Broken(
        with_files(user_item_csv="User,customer_id,item_id\nann,7,i1\n"),
        "ambiguous-column",
        "user_item.csv: the columns 'User' and 'customer_id' could each be 'user_id'. "
        "Rename the right one to 'user_id'",
    ),
    "a NUL byte": Broken(
        with_files(user_item_csv="user_id,item_id\nann,i1\nbo\0b,i2\nbob,\0\n"),
        "nul-byte",
        "user_item.csv:3: there is a NUL byte in the line 'bo\\x00b,i2' (1 more like this). "
        "Export the data again; a NUL byte is a sign of a damaged copy",
    ),
    "Latin-1": Broken(
        with_files(user_item_csv="user_id,item_id\nann,i1\nJosé,i2\n".encode("latin-1")),
        "broken-utf8",
        "user_item.csv:3: the line is not UTF-8 text: 'Jos\\xe9,i2'. "
        "Save the file as UTF-8; it is probably in Latin-1 or Windows-1252 now",
    ),
    "a Latin-1 header": Broken(
        with_files(user_item_csv="user_id,item_id,prénom\nann,i1,x\n".encode("latin-1")),
        "broken-utf8",
        "user_item.csv:1: the line is not UTF-8 text: 'user_id,item_id,pr\\xe9nom'. "
        "Save the file as UTF-8; it is probably in Latin-1 or Windows-1252 now",
    ),
    "UTF-16": Broken(
        with_files(user_item_csv=GOOD["user_item.csv"].encode("utf-16")),
        "broken-utf8",
        "user_item.csv:1: the file is UTF-16, not UTF-8. Save it as UTF-8 (in Excel: 'CSV UTF-8')",
    ),
    "UTF-16 without its mark": Broken(
        with_files(user_item_csv=GOOD["user_item.csv"].encode("utf-16-le")),
        "nul-byte",
        "user_item.csv:1: there is a NUL byte in the line "
        "'u\\x00s\\x00e\\x00r\\x00_\\x00i\\x00d\\x00,\\x00i\\x00t\\x00e\\x00m\\… (5 more like this). "
        "Save the file as UTF-8; it looks like UTF-16",
    ),
    "a row too long": Broken(
        with_files(user_item_csv="user_id,item_id\nann,i1\n\nann,Salt, Pepper\nbob\nbob,i3\n"),
        "ragged-row",
        "user_item.csv:4: 3 fields where the header has 2: 'ann,Salt, Pepper' (1 more like this). "
        "Correct the row; if a field contains a delimiter, put the field in double quotes",
    ),
    "a quote never closed": Broken(
        with_files(user_item_csv='user_id,item_id\n"a\nb",i1\nann,"i2\nbob,i1\nbob,i3\n'),
        "unclosed-quote",
        'user_item.csv:4: a field opens with " and is never closed, so that the rest of the file is one '
        'field. Close the quote; write a " inside a quoted field as ""',
    ),
    "ids missing": Broken(
        with_files(user_item_csv='user_id,item_id\n"an\nn",i1\n\nann,\nbob,i1\nbob, \n'),
        "missing-id",
        "user_item.csv:5: 'item_id' is empty (1 more like this). Fill it in or remove the row",
    ),
    "a plain file named gzip": Broken(
        with_files(user_item_csv=None, user_item_csv_gz=GOOD["user_item.csv"]),
        "bad-gzip",
        "user_item.csv.gz: this is not a valid gzip file (Not a gzipped file (b'us')). "
        "Compress it again, or drop .gz from the name if it is plain text",
    ),
    "a gzip cut short": Broken(
        with_files(user_item_csv=None, user_item_csv_gz=gzip.compress(GOOD["user_item.csv"].encode())[:-12]),
        "bad-gzip",
        "user_item.csv.gz: the gzip file is cut short. Copy or export it again",
    ),
    "a Parquet cut short": Broken(
        with_files(user_item_csv=None, user_item_parquet=parquet(_PAIRS)[:-20]),
        "bad-parquet",
        "user_item.parquet: the Parquet file is cut short: its end is missing. Copy or export it again",
    ),
    "a CSV named Parquet": Broken(
        with_files(user_item_csv=None, user_item_parquet=GOOD["user_item.csv"]),
        "bad-parquet",
        "user_item.parquet: this is not a Parquet file. Copy or export it again",
    ),
    "fractions for ids": Broken(
        with_parquet({"user_id": pa.array([1.0, 2.5, 3.5]), "item_id": pa.array([1, 2, 3])}),
        "bad-id-type",
        "user_item.parquet:2: 'user_id' holds 2.5, a float; an id is text, a whole number or a UUID "
        "(1 more like this). Convert the column to text or whole numbers, or name the right column",
    ),
    "truths for ids": Broken(
        with_parquet({"user_id": pa.array([True]), "item_id": pa.array([1])}),
        "bad-id-type",
        "user_item.parquet:1: 'user_id' holds True, a bool; an id is text, a whole number or a UUID. "
        "Convert the column to text or whole numbers, or name the right column",
    ),
    "lists for ids": Broken(
        with_parquet({"user_id": pa.array([["a", "b"]]), "item_id": pa.array([1])}),
        "bad-id-type",
        "user_item.parquet:1: 'user_id' holds ['a', 'b'], a list; an id is text, a whole number or a UUID. "
        "Convert the column to text or whole numbers, or name the right column",
    ),
    "nulls in a Parquet": Broken(
        with_parquet({"user_id": pa.array(["ann", None, None]), "item_id": pa.array([1, 2, 3])}),
        "missing-id",
        "user_item.parquet:2: 'user_id' is empty (1 more like this). Fill it in or remove the row",
    ),
    "a NUL byte in a Parquet": Broken(
        with_parquet({"user_id": pa.array(["ann", "b\0b"]), "item_id": pa.array([1, 2])}),
        "nul-byte",
        "user_item.parquet:2: 'user_id' holds a NUL byte: 'b\\x00b'. "
        "Export the data again; a NUL byte is a sign of a damaged copy",
    ),
    "bytes for ids": Broken(
        with_parquet({"user_id": pa.array([b"ann", b"\xff"]), "item_id": pa.array([1, 2])}),
        "broken-utf8",
        "user_item.parquet:2: 'user_id' holds bytes that are not UTF-8 text: b'\\xff'. "
        "Store the ids as UTF-8 text or as whole numbers",
    ),
    "a price in words": Broken(
        with_files(items_csv=ITEMS.replace("5,0", "$5,0")),
        "bad-number",
        "items.csv:3: 'price' is '$5'; expected a number from 0 to 1,000,000,000,000. Write it without a "
        "currency sign, with a point for the decimals; leave it empty if it is not known",
    ),
    "a price that no currency has": Broken(
        with_files(items_csv=ITEMS.replace("5,0", "1e30,0")),
        "bad-number",
        "items.csv:3: 'price' is '1e30'; expected a number from 0 to 1,000,000,000,000. Write it without a "
        "currency sign, with a point for the decimals; leave it empty if it is not known",
    ),
    "half a thing in stock": Broken(
        with_files(items_csv=ITEMS.replace("9.99,3", "9.99,2.5")),
        "bad-number",
        "items.csv:2: 'stock' is '2.5'; expected a whole number, 0 or more. "
        "Write how many can be sold; leave it empty if it is not known",
    ),
    "a discount in per cent": Broken(
        with_files(bundles_csv=BUNDLES.replace("0.2", "20")),
        "bad-number",
        "bundles.csv:2: 'discount' is '20'; expected a fraction from 0 to 1. "
        "Write 20% off as 0.2; leave it empty if it is not known",
    ),
    "a bundle without items": Broken(
        with_files(user_bundle_csv=GOOD["user_bundle.csv"] + "bob,b3\nbob,b3\nann,b4\n"),
        "empty-bundle",
        "user_bundle.csv:4: bundle 'b3' has no items in bundle_item.csv (1 more like this). "
        "Add its items there, or remove the bundle",
        "warning",
    ),
    "users with other ids": Broken(
        with_files(user_item_csv="user_id,item_id\n7,i1\n", user_bundle_csv="user_id,bundle_id\n007,b1\n"),
        "no-common-user",
        "user_bundle.csv:2: no user of this table is in user_item.csv; the first is '007'. "
        "If the users are the same, write their ids alike in both; a spreadsheet drops the zeros of 007",
        "warning",
    ),
    "an item outside the catalogue": Broken(
        with_files(items_csv=ITEMS.replace("i3,", "i4,")),
        "item-not-in-catalogue",
        "bundle_item.csv:5: item 'i3' is in a bundle but not in items.csv. "
        "Add it to the catalogue, or correct the id",
        "warning",
    ),
    "an item described twice": Broken(
        with_files(items_csv=ITEMS + "i2,Ash,1,1\n"),
        "duplicate-catalogue-id",
        "items.csv:5: 'item_id' 'i2' is described a second time; only the first description counts. "
        "Keep one row for each id",
        "warning",
    ),
    "a space around an id": Broken(
        with_files(user_item_csv=GOOD["user_item.csv"] + "bob ,i1\n"),
        "id-with-spaces",
        "user_item.csv:6: 'user_id' holds 'bob ', with a space at its start or end: without the space "
        "it is a different id. Trim the ids if the space is a mistake",
        "warning",
    ),
    "no single items": Broken(
        with_files(user_item_csv="user_id,item_id\n"),
        "no-rows",
        "user_item.csv: there are column names but no rows. "
        "Export the data again if users also buy single items; a model can learn from bundles alone",
        "warning",
    ),
    "a column that is not understood": Broken(
        with_files(bundles_csv="bundle_id,title,intent,qty\nb1,Winter,gift,2\nb2,Evening,,\n"),
        "unused-column",
        "bundles.csv: the columns 'intent' and 'qty' are not used; the columns of this table are bundle_id, "
        "title, price, tags, discount and image_url. Rename those that are among these, or leave them",
        "warning",
    ),
    "a column with a slip in its name": Broken(
        with_files(items_csv="item_id,titel\ni1,Frost\ni2,Ember\ni3,Dusk\n"),
        "unused-column",
        "items.csv: the column 'titel' is not used; the columns of this table are item_id, title, price, "
        "tags, stock, cost, image_url, description and vector. Rename 'titel' to 'title' if that "
        "is what it holds, or leave it",
        "warning",
    ),
    "two columns with a slip in their names": Broken(
        with_files(items_csv="item_id,titel,prise,colour\ni1,Frost,1,red\ni2,Ember,2,\ni3,Dusk,3,\n"),
        "unused-column",
        "items.csv: the columns 'titel', 'prise' and 'colour' are not used; the columns of this table are "
        "item_id, title, price, tags, stock, cost, image_url, description and vector. Rename 'titel' "
        "to 'title' and 'prise' to 'price' if that is what they hold, or leave them",
        "warning",
    ),
    "a price that is not like a discount": Broken(
        with_files(bundles_csv="bundle_id,discounted_price\nb1,9\nb2,8\n"),
        "unused-column",
        "bundles.csv: the column 'discounted_price' is not used; the columns of this table are bundle_id, "
        "title, price, tags, discount and image_url. Rename it if it is one of these, or leave it",
        "warning",
    ),
    "a currency for each item": Broken(
        with_files(items_csv="item_id,price,currency\ni1,1,EUR\ni2,2,EUR\ni3,3,EUR\n"),
        "unused-column",
        "items.csv: the column 'currency' is not used; all prices of a shop have the same currency. Name it "
        "when you train, as in --shop currency=EUR",
        "warning",
    ),
    "a date that is none": Broken(
        with_files(user_item_csv="user_id,item_id,date\nann,i1,2026-01-31\nbob,i2,2026-02-30\n"),
        "bad-time",
        "user_item.csv:3: 'date' (read as 'at') is '2026-02-30'; expected a date and time. Write it as "
        "2026-01-31T12:00:00Z or 2026-01-31, or as seconds or milliseconds since 1970; leave it empty if it "
        "is not known, or rename the column if it is something else",
    ),
    "a negative count": Broken(
        with_files(user_bundle_csv="user_id,bundle_id,qty\nann,b1,2\nbob,b2,-1\n"),
        "bad-weight",
        "user_bundle.csv:3: 'qty' (read as 'weight') is '-1'; expected a number from 0 to 1,000,000,000,000. "
        "Write how many or how much it was; a return is an event of a negative type, not a negative number. "
        "Rename the column if it is something else",
    ),
    "several types of events": Broken(
        with_files(user_item_csv="user_id,item_id,event\nann,i1,view\nann,i2,view\nbob,i2,buy\n"),
        "events-alike",
        "user_item.csv: 'event' holds several types of events, and each counts as 1: 'view' (2 rows) and "
        "'buy' (1 row). Say what each is worth, as in --events view=0.2,buy=1",
        "warning",
    ),
    "a vector with NaN": Broken(
        with_files(
            item_vectors_parquet=parquet(
                {"item_id": pa.array(["i1", "i2"]), "vector": pa.array([[0.5, 1.0], [0.5, float("nan")]])}
            )
        ),
        "bad-vector",
        "item_vectors.parquet:2: 'vector' is a list with nan at place 2; expected a list of numbers. Write "
        "it as [0.1, -0.2, 0.3], each vector with the same length and without NaN; leave it empty if there "
        "is none",
    ),
    "vectors of different lengths": Broken(
        with_files(items_csv='item_id,embedding\ni1,"[1, 2]"\ni2,"[1]"\ni3,\n'),
        "uneven-vectors",
        "items.csv:3: 'embedding' (read as 'vector') holds 1 numbers, but the first vector has 2. Make all "
        "vectors with the same model, so that they have the same length",
    ),
    "vectors twice": Broken(
        with_files(
            items_csv='item_id,vector\ni1,"[1, 2]"\ni2,\ni3,\n',
            item_vectors_csv='item_id,vector\ni1,"[1, 2]"\n',
        ),
        "vectors-twice",
        "items.csv: the items have a column 'vector', and there are vectors in item_vectors.csv. Keep the "
        "vectors in one of them",
    ),
    "a cost that is no number": Broken(
        with_files(items_csv="item_id,cost\ni1,1\ni2,-2\ni3,3\n"),
        "bad-number",
        "items.csv:3: 'cost' is '-2'; expected a number from 0 to 1,000,000,000,000. Write it without a "
        "currency sign, with a point for the decimals; leave it empty if it is not known",
    ),
    "an image that runs code": Broken(
        with_files(items_csv="item_id,image\ni1,/a.png\ni2,javascript:alert(1)\ni3,//evil.example/a.png\n"),
        "bad-url",
        "items.csv:3: 'image' (read as 'image_url') is 'javascript:alert(1)'; expected the address of "
        "an image (1 more like this). Write https://HOST/PATH, or /PATH for a file at the address of the "
        "service; leave it empty if there is none",
    ),
    "a column and another name of it": Broken(
        with_files(items_csv="item_id,name,title\ni1,x,Frost\ni2,y,Ember\ni3,z,Dusk\n"),
        "unused-column",
        "items.csv: the column 'name' is not used, because there is a column 'title'. "
        "Leave it; if it is the right one, remove 'title'",
        "warning",
    ),
    "two other names of one column": Broken(
        with_files(items_csv="item_id,categories,genres\ni1,x,Frost\ni2,y,Ember\ni3,z,Dusk\n"),
        "unused-column",
        "items.csv: the column 'categories' is not used, because the column 'genres' is read as 'tags'. "
        "Leave it; if it is the right one, remove 'genres'",
        "warning",
    ),
    "tags that are not read": Broken(
        with_files(items_csv='item_id,tags\ni1,x\ni2,"{""1"": ""Action""}"\ni3,"[""a"\n'),
        "unread-tags",
        "items.csv:3: 'tags' is '{\"1\": \"Action\"}', which is not read; expected a list of texts, or one "
        'text separated by | ; or , (1 more like this). Write it as ["Action", "Role play"] or as Action;'
        "Role play, or leave it: then there are no tags",
        "warning",
    ),
    "a value in a column of another name": Broken(
        with_files(items_csv="sku,quantity\ni1,3\ni2,few\ni3,1\n"),
        "bad-number",
        "items.csv:3: 'quantity' (read as 'stock') is 'few'; expected a whole number, 0 or more. "
        "Write how many can be sold; leave it empty if it is not known",
    ),
    "a column without a name": Broken(
        with_files(user_item_csv=",user_id,item_id\n0,ann,i1\n1,bob,i2\n"),
        "unused-column",
        "user_item.csv: the column number 1 (it has no name) is not used; the columns of this table are "
        "user_id, item_id, at, weight and event. Rename it if it is one of these, or leave it",
        "warning",
    ),
    "files that are not tables": Broken(
        _files_beside,
        "unused-file",
        "{path}: the files 'intent.json', 'orders.xlsx' and 'reviews.csv' are not read; the tables are "
        "user_item, user_bundle, bundle_item, items, bundles and item_vectors (each as .csv, .tsv, .csv.gz, "
        ".tsv.gz or .parquet). Rename those that are among these, or leave them",
        "warning",
    ),
    "a catalogue under a wrong name": Broken(
        with_files(Item_csv=ITEMS),
        "unused-file",
        "{path}: the file 'Item.csv' is not read; the tables are user_item, user_bundle, bundle_item, items, "
        "bundles and item_vectors (each as .csv, .tsv, .csv.gz, .tsv.gz or .parquet). "
        "If 'Item.csv' is the table 'items', save it as items.csv",
        "warning",
    ),
    "an empty catalogue": Broken(
        with_files(items_csv="item_id,title\n"),
        "no-rows",
        "items.csv: there are column names but no rows. "
        "Fill the table or remove it; an empty table is ignored",
        "warning",
    ),
}
