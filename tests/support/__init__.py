"""What tests share: servers, writers of files, oracles; no tests."""
