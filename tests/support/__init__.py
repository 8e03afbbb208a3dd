"""What tests share: chains, emulators, servers, places. No test imports another test."""
