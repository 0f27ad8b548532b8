"""Charts, HTML, Markdown, JSON and JUnit from one analysed run."""
