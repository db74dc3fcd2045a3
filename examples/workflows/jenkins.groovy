// Each law as a test case of Jenkins.
//
// Copy this file to Jenkinsfile and replace:
//   URL-OF-PYMLLM                    the address of pymllm's repository, as git clone takes it
//   my_package.my_adapter:MyCache    module and class of your adapter
pipeline {
    agent any
    stages {
        stage('Verify') {
            steps {
                sh 'python3 -m venv .venv'
                sh '.venv/bin/pip install "pymllm[torch] @ git+URL-OF-PYMLLM" .'
                sh '.venv/bin/pymllm verify --adapter my_package.my_adapter:MyCache --junit laws.xml'
            }
        }
    }
    post {
        always { // also after a violation, with which verify ends in 1
            junit 'laws.xml'
            archiveArtifacts artifacts: 'runs/**', allowEmptyArchive: true
        }
    }
}
