"""Tables from any city or office: texts, workbooks, JSON and Parquet, as observations by time and sensor."""
