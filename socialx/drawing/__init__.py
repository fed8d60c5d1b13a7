"""What pictures, pages and terminal tables share."""
