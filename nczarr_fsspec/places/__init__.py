"""What is said of a place: URLs, paths, addresses, hosts, and the files that tell more of them."""
