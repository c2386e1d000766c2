"""The test kit: contract suites, fakes and faulty parts. The product never imports it."""
