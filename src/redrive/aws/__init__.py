"""Deployment on AWS: Lambda handlers, the Step Functions machine, infrastructure, CloudWatch."""
