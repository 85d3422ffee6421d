"""Reading CSV files by arithmetic on whole blocks of text: lines, cells, numbers, columns."""
