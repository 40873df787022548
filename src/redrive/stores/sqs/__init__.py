"""The store on AWS SQS."""
