"""Tables of any city or office: texts, workbooks, JSON and Parquet, read as readings by time and sensor."""
