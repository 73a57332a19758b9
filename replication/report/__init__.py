"""The replication report: Markdown from what was measured, and one page of HTML from that."""
